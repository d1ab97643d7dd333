"""The block pool beside a naive model of it, and its rules one by one."""

from collections import Counter
from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from replicas.sim.pool import (
    Block,
    BlockPool,
    Change,
    ClearedBlocks,
    RemovedBlocks,
    StoredBlocks,
)
from replicas.sim.sequence import SimSequence
from router.core.types import BlockHash

TOTAL_BLOCKS = 12


def chain(name: int, blocks: int) -> list[BlockHash]:
    """Hashes of one of several prompts."""
    return [BlockHash(name * 1000 + i) for i in range(blocks)]


def owner(hashes: list[BlockHash]) -> SimSequence:
    return SimSequence(len(hashes), 1, hashes)


def fill(pool: BlockPool, hashes: list[BlockHash]) -> list[Block]:
    """Stores `hashes` in fresh blocks and returns them, still held."""
    blocks = pool.acquire([], len(hashes))
    assert blocks is not None
    pool.store(blocks, owner(hashes), 0)
    return blocks


def cached(pool: BlockPool, hashes: list[BlockHash]) -> int:
    return len(pool.match(hashes, len(hashes)))


def test_a_released_prefix_is_found_again_in_order() -> None:
    pool = BlockPool(4)
    blocks = fill(pool, chain(1, 3))
    pool.release(blocks)
    assert pool.match(chain(1, 4), 4) == blocks
    assert pool.match(chain(1, 4), 2) == blocks[:2]
    assert pool.match(chain(2, 3), 3) == []


def test_a_prefix_ends_at_the_first_hole() -> None:
    pool = BlockPool(3)
    blocks = fill(pool, chain(1, 3))
    pool.release(blocks)
    assert pool.acquire([], 1) is not None
    assert pool.match(chain(1, 3), 3) == blocks[:2]


def test_the_tail_of_a_sequence_is_evicted_before_its_head() -> None:
    pool = BlockPool(3)
    hashes = chain(1, 3)
    pool.release(fill(pool, hashes))
    pool.drain_changes()
    pool.acquire([], 2)
    assert pool.drain_changes() == [RemovedBlocks((hashes[2], hashes[1]))]


def test_a_prefix_used_again_outlives_one_that_was_not() -> None:
    pool = BlockPool(4)
    for name in (1, 2):
        pool.release(fill(pool, chain(name, 2)))
    again = pool.acquire(pool.match(chain(1, 2), 2), 0)
    assert again is not None
    pool.release(again)
    pool.acquire([], 2)
    assert cached(pool, chain(1, 2)) == 2
    assert cached(pool, chain(2, 2)) == 0


def test_blocks_without_content_are_taken_before_content_is_evicted() -> None:
    pool = BlockPool(4)
    pool.release(fill(pool, chain(1, 2)))
    pool.release(pool.acquire([], 2) or [])
    pool.acquire([], 2)
    assert cached(pool, chain(1, 2)) == 2


def test_acquire_takes_nothing_when_blocks_are_too_few() -> None:
    """A hit that lies free must not be counted twice, as hit and as fresh block."""
    pool = BlockPool(3)
    pool.release(fill(pool, chain(1, 2)))
    assert pool.acquire(pool.match(chain(1, 2), 2), 2) is None
    assert pool.active_blocks == 0
    assert cached(pool, chain(1, 2)) == 2


@pytest.mark.parametrize("is_each_copy_reported", [True, False])
def test_further_copies_of_a_hash_are_reported_where_that_is_asked(
    is_each_copy_reported: bool,
) -> None:
    pool = BlockPool(2, is_each_copy_reported)
    blocks = fill(pool, chain(1, 1)) + fill(pool, chain(1, 1))
    assert pool.contents() == {chain(1, 1)[0]: 2}
    pool.release(blocks)
    assert pool.acquire([], 1) is not None
    changes = [type(change) for change in pool.drain_changes()]
    assert cached(pool, chain(1, 1)) == 1
    if is_each_copy_reported:
        assert changes == [StoredBlocks, StoredBlocks, RemovedBlocks]
    else:
        assert changes == [StoredBlocks]
        assert pool.acquire([], 1) is not None
        assert pool.drain_changes() == [RemovedBlocks((chain(1, 1)[0],))]


def test_a_stored_run_names_what_it_continues() -> None:
    pool = BlockPool(4)
    sequence = owner(chain(1, 4))
    blocks = pool.acquire([], 4)
    assert blocks is not None
    pool.store(blocks[:1], sequence, 0)
    pool.store(blocks[1:], sequence, 1)
    first, second = pool.drain_changes()
    assert isinstance(first, StoredBlocks)
    assert isinstance(second, StoredBlocks)
    assert (first.parent, first.hashes) == (None, chain(1, 1))
    assert (second.parent, second.hashes) == (chain(1, 1)[0], chain(1, 4)[1:])


def test_reset_is_refused_while_blocks_are_held() -> None:
    pool = BlockPool(2)
    blocks = fill(pool, chain(1, 1))
    assert not pool.reset()
    pool.release(blocks)
    assert pool.reset()
    assert pool.contents() == {}


def test_repeated_resets_pile_up_no_changes() -> None:
    pool = BlockPool(2)
    for _ in range(3):
        pool.reset()
    assert pool.drain_changes() == [ClearedBlocks()]


@dataclass(eq=False)
class NaiveBlock:
    references: int = 1
    content: BlockHash | None = None
    stored_at: int = 0


@dataclass
class Held:
    """A sequence that holds blocks, the first `stored` of them under its chain's hashes.

    `twins` are the naive pool's blocks.
    """

    name: int
    blocks: list[Block]
    twins: list[NaiveBlock]
    stored: int


@dataclass
class NaivePool:
    """The pool's rules, by scanning everything each time; `idle` from the oldest on."""

    held: list[NaiveBlock] = field(default_factory=list)
    idle: list[NaiveBlock] = field(default_factory=list)
    clock: int = 0

    def match(self, hashes: list[BlockHash]) -> list[NaiveBlock]:
        hits: list[NaiveBlock] = []
        for digest in hashes:
            copies = [block for block in self.held + self.idle if block.content == digest]
            if not copies:
                break
            hits.append(min(copies, key=lambda block: block.stored_at))
        return hits

    def acquire(self, hits: list[NaiveBlock], fresh: int) -> list[NaiveBlock] | None:
        rest = [block for block in self.idle if block not in hits]
        held = self.held + [hit for hit in hits if hit in self.idle]
        if len(held) + fresh > TOTAL_BLOCKS:
            return None
        spare = len(held) + len(rest) + fresh - TOTAL_BLOCKS
        self.idle = rest[max(spare, 0) :]
        taken = [NaiveBlock() for _ in range(fresh)]
        self.held = held + taken
        for hit in hits:
            hit.references += 1
        return hits + taken

    def store(self, blocks: list[NaiveBlock], hashes: list[BlockHash]) -> None:
        for block, digest in zip(blocks, hashes, strict=True):
            self.clock += 1
            block.content, block.stored_at = digest, self.clock

    def release(self, blocks: list[NaiveBlock]) -> None:
        for block in reversed(blocks):
            block.references -= 1
            if block.references == 0:
                self.held.remove(block)
                self.idle += [block] * (block.content is not None)

    def contents(self) -> Counter[BlockHash]:
        blocks = self.held + self.idle
        return Counter(block.content for block in blocks if block.content is not None)


class PoolBesideModel(RuleBasedStateMachine):
    """Sequences come, fill blocks and go; the pool and the naive model must agree throughout."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(TOTAL_BLOCKS)
        self.model = NaivePool()
        self.held: list[Held] = []
        self.announced: Counter[BlockHash] = Counter()

    @rule(name=st.integers(1, 3), shared=st.integers(0, 5), fresh=st.integers(0, 6))
    def start(self, name: int, shared: int, fresh: int) -> None:
        hits = self.pool.match(chain(name, shared), shared)
        twins = self.model.match(chain(name, shared))
        assert [hit.content for hit in hits] == [twin.content for twin in twins]
        blocks, taken = self.pool.acquire(hits, fresh), self.model.acquire(twins, fresh)
        assert (blocks is None) == (taken is None)
        if blocks is not None and taken is not None:
            self.held.append(Held(name, blocks, taken, stored=len(hits)))

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def fill_blocks(self, data: st.DataObject) -> None:
        held = data.draw(st.sampled_from(self.held))
        start, end = held.stored, data.draw(st.integers(held.stored, len(held.blocks)))
        if end > start:
            hashes = chain(held.name, end)
            self.pool.store(held.blocks[start:end], owner(hashes), start)
            self.model.store(held.twins[start:end], hashes[start:])
            held.stored = end

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        held = data.draw(st.sampled_from(self.held))
        self.held.remove(held)
        self.pool.release(held.blocks)
        self.model.release(held.twins)

    @rule()
    def reset(self) -> None:
        is_held = any(held.blocks for held in self.held)
        assert self.pool.reset() is not is_held
        if not is_held:
            self.model.idle.clear()

    @invariant()
    def books_agree(self) -> None:
        self.pool.check_integrity()
        assert self.pool.contents() == self.model.contents()
        assert self.pool.free_blocks == TOTAL_BLOCKS - len(self.model.held)

    @invariant()
    def no_block_has_two_writers(self) -> None:
        writable = [id(block) for held in self.held for block in held.blocks[held.stored :]]
        assert len(writable) == len(set(writable))

    @invariant()
    def changes_add_up_to_the_contents(self) -> None:
        for change in self.pool.drain_changes():
            self.announce(change)
        assert +self.announced == self.pool.contents()
        assert min(self.announced.values(), default=0) >= 0

    def announce(self, change: Change) -> None:
        match change:
            case StoredBlocks():
                self.announced.update(change.hashes)
            case RemovedBlocks():
                self.announced.subtract(change.hashes)
            case ClearedBlocks():
                self.announced.clear()


PoolBesideModel.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestPoolBesideModel = PoolBesideModel.TestCase
