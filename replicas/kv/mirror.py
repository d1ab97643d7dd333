"""The replica's own count of what its engine holds, in the router's hashes. Pure.

The rule, on every tier: a stored event adds one copy of each block, a removed event takes one away,
and a block is held while any copy is left. vLLM announces every physical copy, so the count is
exact as long as requests never ask it to announce again what it already holds; should one, the
block stays claimed until the cache is cleared.
"""

from array import array
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from replicas.kv.chain_keys import AdapterKeys, typed_keys, unversioned_adapter
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
from router.core.events import NO_PARENT, EventBatch, SnapshotChunk, StoredRun
from router.core.hashing import chain_root, extend_chain
from router.core.types import EngineBlockHash, Incarnation, ReplicaId, Tier

_TIERS = {None: Tier.GPU, "GPU": Tier.GPU, "CPU": Tier.CPU, "STORAGE": Tier.STORAGE}
_MAX_GHOSTS = 65_536


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
    ) -> None:
        self.counters = MirrorCounters()
        self.is_partial = False
        self._replica_id = replica_id
        self._incarnation = incarnation
        self._block_size = block_size
        self._adapter_keys = adapter_keys
        self._groups = AttentionGroups()
        self._holdings = Holdings()
        self._hashes: dict[EngineBlockHash, int] = {}
        # A child, or the copy on a slower tier, may name a block that has just gone.
        self._ghosts: OrderedDict[EngineBlockHash, int] = OrderedDict()
        self._next_seq = 0

    def __len__(self) -> int:
        """Distinct blocks held on any tier."""
        return len(self._holdings)

    @property
    def has_changes(self) -> bool:
        """Whether the next batch would say anything."""
        return self._holdings.has_changes

    def apply(self, events: Iterable[KVEvent]) -> None:
        """Applies one engine batch. O(tokens).

        Raises `BlockSizeMismatch` where the engine's blocks are not of the configured size: no
        lookup would ever match, so the replica must not serve.
        """
        for event in events:
            match event:
                case BlockStored():
                    self._store(event)
                case BlockRemoved():
                    self._remove(event)
                case AllBlocksCleared():
                    self.clear(Tier.GPU)
                    self.is_partial = False
                    self.counters.applied += 1

    def clear(self, *tiers: Tier) -> None:
        """No copy is left on these tiers. O(blocks)."""
        self._holdings.clear(tiers)
        for name in [name for name, h in self._hashes.items() if h not in self._holdings]:
            self._bury(name)

    def lose(self) -> None:
        """Events were missed for good: nothing is certain any more, so nothing is claimed."""
        self.clear(*Tier)
        self.is_partial = True

    def next_batch(self, max_blocks: int) -> EventBatch:
        """The net changes since the batch before, of at most `max_blocks` blocks; may be empty."""
        cleared, removed, stored = self._holdings.take_changes(max_blocks)
        seq, self._next_seq = self._next_seq, self._next_seq + 1
        return EventBatch(self._replica_id, self._incarnation, seq, stored, removed, cleared)

    def snapshot(self, chunk_blocks: int) -> list[SnapshotChunk]:
        """All that is held, as of the last batch given out; batches go on from there. O(blocks)."""
        parts = list(_grouped(self._holdings.take_all(chunk_blocks), chunk_blocks)) or [()]
        last = len(parts) - 1
        head = self._replica_id, self._incarnation, self._next_seq - 1
        return [
            SnapshotChunk(*head, index, index == last, part) for index, part in enumerate(parts)
        ]

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
            self._name(engine_hash(wire), block_hash)
            self._holdings.add(block_hash, parent, tier)
            parent = block_hash
        self.counters.applied += 1

    def _store_known(self, wires: Iterable[WireHash], tier: Tier) -> None:
        """Blocks without their tokens: copies of blocks that the engine announced before."""
        for wire in wires:
            name = engine_hash(wire)
            block_hash = self._hashes.get(name)
            if block_hash is not None:
                self._holdings.add_copy(block_hash, tier)
            elif name in self._ghosts:
                self._name(name, self._ghosts[name])
                self._holdings.add(self._hashes[name], NO_PARENT, tier)
            else:
                self.counters.unknown_blocks += 1
        self.counters.applied += 1

    def _remove(self, event: BlockRemoved) -> None:
        tier = self._tier(event)
        if tier is None:
            return
        for wire in event.block_hashes:
            name = engine_hash(wire)
            block_hash = self._hashes.get(name)
            if block_hash is None or not self._holdings.remove(block_hash, tier):
                self.counters.unknown_blocks += 1
            elif block_hash not in self._holdings:
                self._bury(name)
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
        if wire is None:
            return NO_PARENT
        name = engine_hash(wire)
        return self._hashes.get(name) or self._ghosts.get(name)

    def _name(self, name: EngineBlockHash, block_hash: int) -> None:
        self._hashes[name] = block_hash
        self._ghosts.pop(name, None)

    def _bury(self, name: EngineBlockHash) -> None:
        self._ghosts[name] = self._hashes.pop(name)
        if len(self._ghosts) > _MAX_GHOSTS:
            self._ghosts.popitem(last=False)


def _packed_tokens(token_ids: tuple[int, ...]) -> bytes | None:
    try:
        return array("I", token_ids).tobytes()
    except (OverflowError, TypeError):
        return None


def _grouped(runs: Iterable[StoredRun], max_blocks: int) -> Iterator[tuple[StoredRun, ...]]:
    """Runs of at most `max_blocks` blocks each, in groups of at most as many."""
    group: list[StoredRun] = []
    blocks = 0
    for run in runs:
        if group and blocks + len(run.hashes) > max_blocks:
            yield tuple(group)
            group, blocks = [], 0
        group.append(run)
        blocks += len(run.hashes)
    if group:
        yield tuple(group)
