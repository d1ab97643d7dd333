"""The order of each replica's batches: who is registered, what comes next, what is held back.

Decides about messages; what they say about blocks is the index's business.
"""

from collections import OrderedDict
from dataclasses import dataclass, field
from enum import StrEnum

from router.core.errors import RegistrationRefused
from router.core.events import EventBatch, SnapshotChunk
from router.core.types import Incarnation, ReplicaId, Slot

_MAX_HELD_BATCHES = 64
_MAX_HELD_BLOCKS = 65_536
_MAX_TOMBSTONES_PER_SLOT = 4


class Outcome(StrEnum):
    """What became of a batch or a snapshot chunk.

    `HELD` is kept until what is missing arrives; `GAP` was too far ahead for that and dropped;
    `OUT_OF_ORDER` is a snapshot chunk that does not continue the one being loaded, which is lost.
    """

    APPLIED = "applied"
    DUPLICATE = "duplicate"
    HELD = "held"
    GAP = "gap"
    OUT_OF_ORDER = "out_of_order"
    STALE_INCARNATION = "stale_incarnation"
    UNKNOWN_REPLICA = "unknown_replica"


@dataclass(frozen=True, slots=True)
class ApplyResult:
    """`wants_snapshot`: the sender is to send one, from its first chunk. `blocks` were changed."""

    outcome: Outcome
    wants_snapshot: bool = False
    blocks: int = 0


@dataclass(slots=True)
class Loading:
    """A snapshot of which some chunks have arrived; they fill `column` until the last."""

    seq: int
    column: int
    next_index: int = 1


@dataclass(slots=True)
class Stream:
    """One life of one replica."""

    slot: Slot
    incarnation: Incarnation
    next_seq: int = 0
    held: dict[int, EventBatch] = field(default_factory=dict)
    loading: Loading | None = None
    is_behind: bool = False
    """A batch ahead of `next_seq` has arrived, and neither the missing ones nor a snapshot."""

    def pop_next(self) -> EventBatch | None:
        """The held batch that is next, if it is there; forgets those that came too late."""
        for seq in [seq for seq in self.held if seq < self.next_seq]:
            del self.held[seq]
        batch = self.held.pop(self.next_seq, None)
        if batch is None:
            self.is_behind = bool(self.held)
        return batch


class Streams:
    """The registered replicas, at most `max_replicas`.

    The last incarnation of those that left is remembered for a while, so that an older life cannot
    come back.
    """

    def __init__(self, max_replicas: int) -> None:
        self.by_replica: dict[ReplicaId, Stream] = {}
        self.outcomes = dict.fromkeys(Outcome, 0)
        self.gaps = 0
        self._free = [Slot(slot) for slot in reversed(range(max_replicas))]
        self._tombstones: OrderedDict[ReplicaId, Incarnation] = OrderedDict()
        self._max_tombstones = _MAX_TOMBSTONES_PER_SLOT * max_replicas

    def register(self, replica_id: ReplicaId, incarnation: Incarnation) -> tuple[Slot, bool]:
        """The replica's slot, and whether a new life begins in it. Idempotent.

        Raises `RegistrationRefused` for a life older than one seen before, and when all slots are
        taken.
        """
        stream = self.by_replica.get(replica_id)
        last = stream.incarnation if stream else self._tombstones.get(replica_id)
        if last is not None and incarnation < last:
            raise RegistrationRefused(f"{replica_id}: incarnation {incarnation} after {last}")
        if stream is not None:
            if stream.incarnation == incarnation:
                return stream.slot, False
            self.by_replica[replica_id] = Stream(stream.slot, incarnation)
            return stream.slot, True
        if not self._free:
            raise RegistrationRefused(f"{replica_id}: all {len(self.by_replica)} slots are taken")
        self._tombstones.pop(replica_id, None)
        slot = self._free.pop()
        self.by_replica[replica_id] = Stream(slot, incarnation)
        return slot, True

    def forget(self, replica_id: ReplicaId) -> Stream | None:
        """Ends the replica's registration and frees its slot. Idempotent."""
        stream = self.by_replica.pop(replica_id, None)
        if stream is None:
            return None
        self._free.append(stream.slot)
        self._tombstones[replica_id] = stream.incarnation
        if len(self._tombstones) > self._max_tombstones:
            self._tombstones.popitem(last=False)
        return stream

    def admit(self, batch: EventBatch) -> Outcome:
        """`APPLIED` where the batch is the next one; the caller applies it and those held."""
        stream, refusal = self._life(batch)
        if stream is None:
            return refusal
        if batch.seq < stream.next_seq:
            return Outcome.DUPLICATE
        if stream.loading is None and batch.seq == stream.next_seq:
            return Outcome.APPLIED
        return self._hold(stream, batch)

    def admit_chunk(self, chunk: SnapshotChunk) -> Outcome:
        """`APPLIED` where the chunk begins a snapshot or continues the one being loaded."""
        stream, refusal = self._life(chunk)
        if stream is None:
            return refusal
        if chunk.seq + 1 < stream.next_seq:
            return Outcome.DUPLICATE
        if chunk.index == 0:
            return Outcome.APPLIED
        loading = stream.loading
        continues = loading is not None and (chunk.seq, chunk.index) == (
            loading.seq,
            loading.next_index,
        )
        return Outcome.APPLIED if continues else Outcome.OUT_OF_ORDER

    def incomplete(self) -> int:
        """How many replicas have a gap or a snapshot under way."""
        return sum(s.is_behind or s.loading is not None for s in self.by_replica.values())

    def count(self, outcome: Outcome) -> None:
        self.outcomes[outcome] += 1

    def _life(self, message: EventBatch | SnapshotChunk) -> tuple[Stream | None, Outcome]:
        stream = self.by_replica.get(message.replica_id)
        if stream is None or message.incarnation > stream.incarnation:
            return None, Outcome.UNKNOWN_REPLICA
        if message.incarnation < stream.incarnation:
            return None, Outcome.STALE_INCARNATION
        return stream, Outcome.APPLIED

    def _hold(self, stream: Stream, batch: EventBatch) -> Outcome:
        if stream.loading is None and not stream.is_behind:
            stream.is_behind = True
            self.gaps += 1
        if batch.seq in stream.held:
            return Outcome.DUPLICATE
        held_blocks = sum(held.blocks for held in stream.held.values())
        if len(stream.held) >= _MAX_HELD_BATCHES or held_blocks + batch.blocks > _MAX_HELD_BLOCKS:
            return Outcome.GAP
        stream.held[batch.seq] = batch
        return Outcome.HELD
