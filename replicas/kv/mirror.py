"""The replica's own count of what its engine holds, in the router's hashes. Pure.

The rule, on every tier: a stored event adds one copy of each block, a removed event takes one away,
and a block is held while any copy is left. vLLM announces every physical copy, so the count is
exact as long as requests never ask it to announce again what it already holds; should one, the
block stays claimed until the cache is cleared.
"""

from array import array
from collections.abc import Iterable
from dataclasses import dataclass

from replicas.kv.chain_keys import AdapterKeys, typed_keys, unversioned_adapter
from replicas.kv.engine_names import EngineNames
from replicas.kv.event_log import EventLog
from replicas.kv.events import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    KVEvent,
    WireHash,
    engine_hash,
)
from replicas.kv.groups import AttentionGroups
from replicas.kv.holdings import Holdings
from router.core.errors import BlockSizeMismatch
from router.core.events import NO_PARENT, EventBatch, SnapshotChunk
from router.core.hashing import chain_root, extend_chain
from router.core.types import Incarnation, ReplicaId, Tier

_TIERS = {None: Tier.GPU, "GPU": Tier.GPU, "CPU": Tier.CPU, "STORAGE": Tier.STORAGE}


@dataclass(slots=True)
class MirrorCounters:
    """Since the start: events by what became of them, and unknown blocks that events named."""

    applied: int = 0
    other_group: int = 0
    unknown_medium: int = 0
    remote: int = 0
    malformed: int = 0
    unknown_parent: int = 0
    unknown_blocks: int = 0
    before_reset: int = 0


class Mirror:
    """One life of one engine, or of one data-parallel rank of it, told in its events.

    `is_partial` after something was missed: blocks may be held that are not known of, until the
    engine's cache has been cleared. Holds as many blocks as the engine does, and the hashes of a
    bounded number of blocks that have gone.
    """

    def __init__(
        self,
        replica_id: ReplicaId,
        incarnation: Incarnation,
        block_size: int,
        adapter_keys: AdapterKeys = unversioned_adapter,
        log: EventLog | None = None,
    ) -> None:
        self.counters = MirrorCounters()
        self.is_partial = False
        self._replica_id = replica_id
        self._incarnation = incarnation
        self._block_size = block_size
        self._adapter_keys = adapter_keys
        self._groups = AttentionGroups()
        self._log = EventLog() if log is None else log
        self._holdings = Holdings(self._log.note)
        self._names = EngineNames()
        self._next_seq = 0
        self._awaits_clear = False

    def __len__(self) -> int:
        """Distinct blocks held on any tier."""
        return len(self._holdings)

    def __contains__(self, block_hash: int) -> bool:
        return block_hash in self._holdings

    @property
    def has_changes(self) -> bool:
        """Whether the next batch would say anything."""
        return self._holdings.has_changes

    def apply(self, events: Iterable[KVEvent], at_s: float = 0.0) -> None:
        """Applies one engine batch, published at `at_s`. O(tokens).

        Raises `BlockSizeMismatch` where the engine's blocks are not of the configured size: no
        lookup would ever match, so the replica must not serve.
        """
        self._log.now_s = at_s
        for event in events:
            match event:
                case AllBlocksCleared():
                    self._clear_all()
                case _ if self._awaits_clear:
                    self.counters.before_reset += 1
                case BlockStored():
                    self._store(event)
                case BlockRemoved():
                    self._remove(event)

    def clear(self, *tiers: Tier) -> None:
        """No copy is left on these tiers. O(blocks)."""
        self._holdings.clear(tiers)
        self._names.bury_all_but(self._holdings)

    def reset(self, at_s: float = 0.0) -> None:
        """The engine dropped its cache at `at_s` and will say so only with its next step.

        All that it says until then happened before.
        """
        self._log.now_s = at_s
        self.clear(Tier.GPU)
        self.is_partial = False
        self._awaits_clear = True

    def lose(self) -> None:
        """Events were missed for good: nothing is certain any more, so nothing is claimed."""
        self.clear(*Tier)
        self.is_partial = True
        self._awaits_clear = False

    def next_batch(self, max_blocks: int) -> EventBatch:
        """The net changes since the batch before, of at most `max_blocks` blocks; may be empty."""
        cleared, removed, stored = self._holdings.take_changes(max_blocks)
        seq, self._next_seq = self._next_seq, self._next_seq + 1
        batch = EventBatch(self._replica_id, self._incarnation, seq, stored, removed, cleared)
        self._log.note_batch(batch)
        return batch

    def snapshot(self, chunk_blocks: int) -> list[SnapshotChunk]:
        """All that is held; takes a number of its own, from which batches go on. O(blocks)."""
        parts = self._holdings.take_all(chunk_blocks)
        seq, self._next_seq = self._next_seq, self._next_seq + 1
        self._log.note_snapshot(seq)
        last = len(parts) - 1
        head = self._replica_id, self._incarnation, seq
        return [
            SnapshotChunk(*head, index, index == last, part) for index, part in enumerate(parts)
        ]

    def _clear_all(self) -> None:
        self.counters.applied += 1
        self._awaits_clear = False
        self.clear(Tier.GPU)
        self.is_partial = False

    def _store(self, event: BlockStored) -> None:
        self._groups.learn(event.group_idx, event.kv_cache_spec_kind)
        tier = self._tier(event)
        if tier is None:
            return
        if event.token_ids:
            self._store_chain(event, tier)
        else:
            self._store_known(event.block_hashes, tier)

    def _store_chain(self, event: BlockStored, tier: Tier) -> None:
        if event.block_size != self._block_size:
            raise BlockSizeMismatch(
                f"the engine's blocks have {event.block_size} tokens, {self._block_size} expected"
            )
        tokens = _packed_tokens(event.token_ids)
        if tokens is None or len(event.block_hashes) * self._block_size != len(event.token_ids):
            self.counters.malformed += 1
            return
        keys = typed_keys(event, self._adapter_keys)
        parent = self._parent(event.parent_block_hash)
        if parent is None:
            self.counters.unknown_parent += 1
            self.is_partial = True
            return
        start = parent or chain_root(self._block_size, keys.chain)
        hashes = extend_chain(start, tokens, self._block_size, keys.blocks)
        for wire, block_hash in zip(event.block_hashes, hashes, strict=True):
            self._names.name(engine_hash(wire), block_hash)
            self._holdings.add(block_hash, parent, tier)
            parent = block_hash
        self.counters.applied += 1

    def _store_known(self, wires: Iterable[WireHash], tier: Tier) -> None:
        """Blocks without their tokens: copies of blocks that the engine announced before."""
        for wire in wires:
            block_hash = self._names.revived(engine_hash(wire))
            if block_hash is None:
                self.counters.unknown_blocks += 1
            elif block_hash in self._holdings:
                self._holdings.add_copy(block_hash, tier)
            else:
                self._holdings.add(block_hash, NO_PARENT, tier)
        self.counters.applied += 1

    def _remove(self, event: BlockRemoved) -> None:
        tier = self._tier(event)
        if tier is None:
            return
        for wire in event.block_hashes:
            name = engine_hash(wire)
            block_hash = self._names.held(name)
            if block_hash is None or not self._holdings.remove(block_hash, tier):
                self.counters.unknown_blocks += 1
            elif block_hash not in self._holdings:
                self._names.bury(name)
        self.counters.applied += 1

    def _tier(self, event: BlockStored | BlockRemoved) -> Tier | None:
        """The tier of an event that counts; counts the others by their reason."""
        if not self._groups.counts(event.group_idx):
            self.counters.other_group += 1
        elif event.locality == "REMOTE":
            self.counters.remote += 1
        elif event.medium not in _TIERS:
            self.counters.unknown_medium += 1
        else:
            return _TIERS[event.medium]
        return None

    def _parent(self, wire: WireHash | None) -> int | None:
        """The parent's hash, `NO_PARENT` at the root, None where it was never announced."""
        return NO_PARENT if wire is None else self._names.known(engine_hash(wire))


def _packed_tokens(token_ids: tuple[int, ...]) -> bytes | None:
    try:
        return array("I", token_ids).tobytes()
    except (OverflowError, TypeError):
        return None
