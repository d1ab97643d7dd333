"""The block pool: reference counts, prefix reuse, least-recently-used eviction, KV events.

It follows vLLM's pool: a released block with content stays reusable until it is the oldest free
one; a hash may lie in several blocks at once; each copy stored or evicted makes its own event.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NewType

from replicas.sim.events import MEDIUM, AllBlocksCleared, BlockRemoved, BlockStored, KVEvent
from router.core.types import BlockHash

BlockId = NewType("BlockId", int)
"""A physical block of the pool, from 0."""


@dataclass(slots=True)
class _Block:
    references: int = 0
    content: BlockHash | None = None


@dataclass(frozen=True, slots=True)
class StoredRun:
    """Consecutive blocks that became full in one pass, with what their event says of them."""

    hashes: tuple[BlockHash, ...]
    parent: BlockHash | None
    token_ids: tuple[int, ...]
    block_size: int
    cache_salt: str | None

    def event(self) -> BlockStored:
        """The event; a salt is named at the root block only."""
        is_salted_root = self.parent is None and self.cache_salt is not None
        root = (self.cache_salt or "",) if is_salted_root else None
        return BlockStored(
            block_hashes=self.hashes,
            parent_block_hash=self.parent,
            token_ids=self.token_ids,
            block_size=self.block_size,
            lora_id=None,
            medium=MEDIUM,
            lora_name=None,
            extra_keys=(root, *(None,) * (len(self.hashes) - 1)),
            group_idx=0,
        )


@dataclass(slots=True)
class BlockPool:
    """`total_blocks` blocks, all free and empty at first.

    Events pile up until `drain_events`; one pass makes at most a few for each block.
    """

    total_blocks: int
    _blocks: list[_Block] = field(init=False)
    _free: "OrderedDict[BlockId, None]" = field(init=False)
    _holders: dict[BlockHash, dict[BlockId, None]] = field(init=False, default_factory=dict)
    _events: list[KVEvent] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        self._blocks = [_Block() for _ in range(self.total_blocks)]
        self._free = OrderedDict((BlockId(i), None) for i in range(self.total_blocks))

    @property
    def free_blocks(self) -> int:
        """Blocks that nobody holds, reusable content included."""
        return len(self._free)

    @property
    def active_blocks(self) -> int:
        """Blocks that running sequences hold."""
        return self.total_blocks - len(self._free)

    def contents(self) -> dict[BlockHash, int]:
        """Copies of each reusable hash. O(hashes)."""
        return {digest: len(ids) for digest, ids in self._holders.items()}

    def match(self, hashes: Sequence[BlockHash]) -> list[BlockId]:
        """Blocks that hold the longest cached prefix of `hashes`. Changes nothing. O(hits)."""
        hits: list[BlockId] = []
        for digest in hashes:
            ids = self._holders.get(digest)
            if ids is None:
                break
            hits.append(next(iter(ids)))
        return hits

    def acquire(self, hits: Sequence[BlockId], fresh_blocks: int) -> list[BlockId] | None:
        """Takes a reference on `hits` and allocates `fresh_blocks` more, the oldest free first.

        All or nothing: `None`, and nothing changed, where too few are free. O(blocks taken).
        """
        idle_hits = sum(self._blocks[hit].references == 0 for hit in hits)
        if fresh_blocks > len(self._free) - idle_hits:
            return None
        for hit in hits:
            self._blocks[hit].references += 1
            self._free.pop(hit, None)
        return [*hits, *(self._allocate() for _ in range(fresh_blocks))]

    def store(self, ids: Sequence[BlockId], run: StoredRun) -> None:
        """Makes held blocks reusable under their hashes. O(blocks)."""
        for block_id, digest in zip(ids, run.hashes, strict=True):
            block = self._blocks[block_id]
            assert block.references > 0 and block.content is None
            block.content = digest
            self._holders.setdefault(digest, {})[block_id] = None
        self._events.append(run.event())

    def release(self, ids: Sequence[BlockId]) -> None:
        """Gives back one reference on each; `ids` in sequence order. O(blocks).

        The tail becomes older than the head, so that prefixes outlive their ends; blocks without
        content are the next to be taken.
        """
        for block_id in reversed(ids):
            block = self._blocks[block_id]
            assert block.references > 0
            block.references -= 1
            if block.references == 0:
                self._free[block_id] = None
                if block.content is None:
                    self._free.move_to_end(block_id, last=False)

    def reset(self) -> bool:
        """Drops all reusable content; false, and nothing changed, while any block is held."""
        if self.active_blocks:
            return False
        self._holders.clear()
        for block in self._blocks:
            block.content = None
        if not (self._events and isinstance(self._events[-1], AllBlocksCleared)):
            self._events.append(AllBlocksCleared())
        return True

    def drain_events(self) -> tuple[KVEvent, ...]:
        """What changed since the last call, in order."""
        events = tuple(self._events)
        self._events.clear()
        return events

    def check_integrity(self) -> None:
        """Raises AssertionError where the books disagree. O(total blocks)."""
        idle = {BlockId(i) for i, block in enumerate(self._blocks) if block.references == 0}
        assert idle == set(self._free)
        held = {(b.content, i) for i, b in enumerate(self._blocks) if b.content is not None}
        assert held == {(digest, i) for digest, ids in self._holders.items() for i in ids}
        assert all(self._holders.values())

    def _allocate(self) -> BlockId:
        block_id, _ = self._free.popitem(last=False)
        block = self._blocks[block_id]
        block.references = 1
        if block.content is not None:
            self._evict(block_id, block.content)
            block.content = None
        return block_id

    def _evict(self, block_id: BlockId, digest: BlockHash) -> None:
        ids = self._holders[digest]
        del ids[block_id]
        if not ids:
            del self._holders[digest]
        self._events.append(BlockRemoved(block_hashes=(digest,), medium=MEDIUM, group_idx=0))
