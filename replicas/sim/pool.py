"""The block pool: reference counts, prefix reuse, least-recently-used eviction, changes.

It follows vLLM's pool: a released block with content stays reusable until it is the oldest idle
one; blocks without content are taken first; a hash may lie in several blocks at once.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from router.core.types import BlockHash


class Chained(Protocol):
    """Whatever blocks can belong to: it knows the chained hashes of its leading full blocks."""

    @property
    def hashes(self) -> list[BlockHash]: ...


@dataclass(slots=True, eq=False)
class Block:
    """A physical block that is held or has content; `content` is None until it may be reused."""

    references: int = 1
    content: BlockHash | None = None


@dataclass(frozen=True, slots=True)
class StoredBlocks:
    """Blocks `start` to `end` of a sequence became reusable. Read while the sequence lives."""

    sequence: Chained
    start: int
    end: int

    @property
    def hashes(self) -> list[BlockHash]:
        return self.sequence.hashes[self.start : self.end]

    @property
    def parent(self) -> BlockHash | None:
        """The block before the first; None at the root."""
        return self.sequence.hashes[self.start - 1] if self.start else None


@dataclass(frozen=True, slots=True)
class RemovedBlocks:
    """Blocks are no longer reusable, in the order of their eviction."""

    hashes: tuple[BlockHash, ...]


@dataclass(frozen=True, slots=True)
class ClearedBlocks:
    """All reusable content was dropped."""


Change = StoredBlocks | RemovedBlocks | ClearedBlocks


@dataclass(slots=True)
class BlockPool:
    """`total_blocks` blocks, all empty at first.

    Changes pile up until `drain_changes`. With `is_each_copy_reported`, every copy of a hash that
    is stored or evicted is one, as in vLLM; without, only a hash's first copy and its last.
    """

    total_blocks: int
    is_each_copy_reported: bool = True
    _used_blocks: int = 0
    _idle: "OrderedDict[Block, None]" = field(init=False, default_factory=OrderedDict)
    _first: dict[BlockHash, Block] = field(init=False, default_factory=dict)
    _further: dict[BlockHash, list[Block]] = field(init=False, default_factory=dict)
    _changes: list[Change] = field(init=False, default_factory=list)

    @property
    def free_blocks(self) -> int:
        """Blocks that nobody holds, reusable content included."""
        return self.total_blocks - self.active_blocks

    @property
    def active_blocks(self) -> int:
        """Blocks that running sequences hold."""
        return self._used_blocks - len(self._idle)

    @property
    def has_changes(self) -> bool:
        """Some are to be drained."""
        return bool(self._changes)

    def contents(self) -> dict[BlockHash, int]:
        """Copies of each reusable hash. O(hashes)."""
        return {digest: 1 + len(self._further.get(digest, ())) for digest in self._first}

    def match(self, hashes: Sequence[BlockHash], limit: int) -> list[Block]:
        """Blocks that hold the longest cached prefix of the first `limit` hashes. O(hits)."""
        hits: list[Block] = []
        find = self._first.get
        for digest in hashes[:limit]:
            block = find(digest)
            if block is None:
                break
            hits.append(block)
        return hits

    def has_room(self, hits: Sequence[Block], fresh_blocks: int) -> bool:
        """Whether `hits` can be held and `fresh_blocks` more be had. O(hits)."""
        if fresh_blocks > self.free_blocks:
            return False
        idle_hits = sum([not hit.references for hit in hits])
        return fresh_blocks + idle_hits <= self.free_blocks

    def acquire(self, hits: Sequence[Block], fresh_blocks: int) -> list[Block] | None:
        """Takes a reference on `hits` and `fresh_blocks` more: empty ones, then the oldest idle.

        All or nothing: None, and nothing changed, where too few are free. O(blocks taken).
        """
        if not self.has_room(hits, fresh_blocks):
            return None
        for hit in hits:
            if not hit.references:
                del self._idle[hit]
            hit.references += 1
        self._evict(self._used_blocks + fresh_blocks - self.total_blocks)
        self._used_blocks += fresh_blocks
        return [*hits, *[Block() for _ in range(fresh_blocks)]]

    def store(self, blocks: Sequence[Block], sequence: Chained, start: int) -> None:
        """Makes held blocks reusable: those of `sequence` from its block `start` on. O(blocks)."""
        end = start + len(blocks)
        hashes = sequence.hashes[start:end]
        known = [self._label(*pair) for pair in zip(blocks, hashes, strict=True)]
        if self.is_each_copy_reported or not any(known):
            self._changes.append(StoredBlocks(sequence, start, end))
            return
        for at, was_known in enumerate(known, start):
            if not was_known:
                self._changes.append(StoredBlocks(sequence, at, at + 1))

    def release(self, blocks: Sequence[Block]) -> None:
        """Gives back one reference on each; `blocks` in sequence order. O(blocks).

        The tail becomes older than the head, so that prefixes outlive their ends.
        """
        for block in reversed(blocks):
            block.references -= 1
            if not block.references:
                if block.content is None:
                    self._used_blocks -= 1
                else:
                    self._idle[block] = None

    def reset(self) -> bool:
        """Drops all reusable content; false, and nothing changed, while any block is held."""
        if self.active_blocks:
            return False
        self._used_blocks = 0
        for books in (self._idle, self._first, self._further):
            books.clear()
        if self._changes[-1:] != [ClearedBlocks()]:
            self._changes.append(ClearedBlocks())
        return True

    def drop_idle(self) -> None:
        """Evicts whatever nobody holds. O(blocks)."""
        self._evict(len(self._idle))

    def drain_changes(self) -> list[Change]:
        """What changed since the last call, in order."""
        changes, self._changes = self._changes, []
        return changes

    def check_integrity(self) -> None:
        """Raises AssertionError where the books disagree. O(total blocks)."""
        copies = [*self._first.values(), *(b for more in self._further.values() for b in more)]
        assert 0 <= len(self._idle) <= self._used_blocks <= self.total_blocks
        assert all(block.references == 0 for block in self._idle)
        assert {id(b) for b in copies if b.references == 0} == {id(b) for b in self._idle}
        assert all(self._first[digest].content == digest for digest in self._first)
        assert all(self._further.values()) and self._further.keys() <= self._first.keys()

    def _label(self, block: Block, digest: BlockHash) -> bool:
        """Gives a block its content; true where another holds the same."""
        assert block.content is None
        block.content = digest
        if self._first.setdefault(digest, block) is block:
            return False
        self._further.setdefault(digest, []).append(block)
        return True

    def _evict(self, blocks: int) -> None:
        """Takes the content of the `blocks` oldest idle ones, none where that is not positive."""
        removed = []
        for _ in range(blocks):
            block, _ = self._idle.popitem(last=False)
            digest = block.content
            assert digest is not None
            if self._forget(block, digest) or self.is_each_copy_reported:
                removed.append(digest)
        self._used_blocks -= max(blocks, 0)
        if removed:
            self._changes.append(RemovedBlocks(tuple(removed)))

    def _forget(self, block: Block, digest: BlockHash) -> bool:
        """Takes one copy off the books; true where it was the last."""
        further = self._further.get(digest)
        if further is None:
            del self._first[digest]
            return True
        if self._first[digest] is block:
            self._first[digest] = further.pop(0)
        else:
            further.remove(block)
        if not further:
            del self._further[digest]
        return False
