"""The simulated replicas, and how the block index hears of their caches. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from replicas.sim.pool import Change, ClearedBlocks, RemovedBlocks, StoredBlocks
from replicas.sim.replica import SimReplica
from router.core.events import NO_PARENT, EventBatch, RemovedRun, StoredRun
from router.core.types import Incarnation, ReplicaId, Slot, Tier


@dataclass(slots=True)
class Work:
    """What a replica has done, in all its lives."""

    requests: int = 0
    computed_tokens: int = 0
    busy_s: float = 0.0


@dataclass(slots=True, eq=False)
class Replica:
    """One life of a simulated replica, begun at `since_s`. `is_busy`: a pass is under way;
    `is_leaving`: it gets no more requests; `quiet`: when passes end that nobody need look at, after
    the time at which the first began; empty where one is looked at."""

    replica_id: ReplicaId
    incarnation: Incarnation
    slot: Slot
    engine: SimReplica
    work: Work
    since_s: float
    is_busy: bool = False
    is_leaving: bool = False
    next_seq: int = 0
    quiet: list[float] = field(default_factory=list)

    def batches(self, changes: Sequence[Change]) -> Iterator[EventBatch]:
        """The next of this life's event batches, one where the order within it does not matter."""
        stored: list[StoredRun] = []
        removed: list[RemovedRun] = []
        for change in changes:
            match change:
                case StoredBlocks():
                    stored.append(_stored(change))
                case RemovedBlocks():
                    if stored and _is_among(change, stored):
                        yield self._batch(stored, removed)
                        stored, removed = [], []
                    removed.append(RemovedRun(Tier.GPU, np.array(change.hashes, np.uint64)))
                case ClearedBlocks():
                    yield self._batch([], [], (Tier.GPU,))
                    stored, removed = [], []
        if stored or removed:
            yield self._batch(stored, removed)

    def _batch(
        self,
        stored: Sequence[StoredRun],
        removed: Sequence[RemovedRun],
        cleared: tuple[Tier, ...] = (),
    ) -> EventBatch:
        seq, self.next_seq = self.next_seq, self.next_seq + 1
        return EventBatch(
            self.replica_id, self.incarnation, seq, tuple(stored), tuple(removed), cleared
        )


class Members:
    """Who is registered; leases never lapse here, as whoever dies is heard of."""

    def __init__(self, max_replicas: int) -> None:
        self.version = 0
        self._by_id: dict[ReplicaId, Replica] = {}
        self._is_there = np.zeros(max_replicas, np.bool_)

    def add(self, replica: Replica) -> None:
        self._by_id[replica.replica_id] = replica
        self._is_there[replica.slot] = True
        self.version += 1

    def remove(self, replica: Replica) -> None:
        del self._by_id[replica.replica_id]
        self._is_there[replica.slot] = False
        self.version += 1

    def get(self, replica_id: ReplicaId) -> Replica | None:
        return self._by_id.get(replica_id)

    def leases(self) -> list[Replica]:
        return list(self._by_id.values())

    def fresh(self, now: float) -> NDArray[np.bool_]:
        return self._is_there


def _stored(change: StoredBlocks) -> StoredRun:
    parent = change.parent
    return StoredRun(
        Tier.GPU, NO_PARENT if parent is None else parent, np.array(change.hashes, np.uint64)
    )


def _is_among(removed: RemovedBlocks, stored: Sequence[StoredRun]) -> bool:
    """Whether one of these blocks came and went within one pass."""
    fresh = {block for run in stored for block in run.hashes.tolist()}
    return not fresh.isdisjoint(removed.hashes)
