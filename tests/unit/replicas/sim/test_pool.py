"""The block pool beside a naive model of it, and its rules one by one."""

from collections import Counter
from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from replicas.sim.events import AllBlocksCleared, BlockRemoved, BlockStored, KVEvent
from replicas.sim.pool import BlockId, BlockPool, StoredRun
from router.core.types import BlockHash

TOTAL_BLOCKS = 12


def chain(name: int, blocks: int) -> list[BlockHash]:
    """Hashes of one of several prompts."""
    return [BlockHash(name * 1000 + i) for i in range(blocks)]


def run_of(hashes: list[BlockHash], parent: BlockHash | None = None) -> StoredRun:
    return StoredRun(tuple(hashes), parent, tuple(range(len(hashes))), 1, None)


def fill(pool: BlockPool, hashes: list[BlockHash]) -> list[BlockId]:
    """Stores `hashes` in fresh blocks and returns them, still held."""
    ids = pool.acquire([], len(hashes))
    assert ids is not None
    pool.store(ids, run_of(hashes))
    return ids


def test_a_released_prefix_is_found_again_in_order() -> None:
    pool = BlockPool(4)
    ids = fill(pool, chain(1, 3))
    pool.release(ids)
    assert pool.match(chain(1, 4)) == ids
    assert pool.match(chain(2, 3)) == []


def test_a_prefix_ends_at_the_first_hole() -> None:
    pool = BlockPool(3)
    pool.release(fill(pool, chain(1, 3)))
    taken = pool.acquire([], 1)
    assert taken is not None
    assert pool.match(chain(1, 3)) == [0, 1]


def test_the_tail_of_a_sequence_is_evicted_before_its_head() -> None:
    pool = BlockPool(3)
    hashes = chain(1, 3)
    pool.release(fill(pool, hashes))
    pool.drain_events()
    pool.acquire([], 2)
    removed = [event.block_hashes[0] for event in removals(pool.drain_events())]
    assert removed == [hashes[2], hashes[1]]


def test_a_prefix_used_again_outlives_one_that_was_not() -> None:
    pool = BlockPool(4)
    for name in (1, 2):
        pool.release(fill(pool, chain(name, 2)))
    again = pool.acquire(pool.match(chain(1, 2)), 0)
    assert again is not None
    pool.release(again)
    pool.acquire([], 2)
    assert len(pool.match(chain(1, 2))) == 2
    assert pool.match(chain(2, 2)) == []


def test_blocks_without_content_are_taken_before_content_is_evicted() -> None:
    pool = BlockPool(4)
    pool.release(fill(pool, chain(1, 2)))
    pool.release(pool.acquire([], 2) or [])
    pool.acquire([], 2)
    assert len(pool.match(chain(1, 2))) == 2


def test_acquire_takes_nothing_when_blocks_are_too_few() -> None:
    """A hit that lies free must not be counted twice, as hit and as fresh block."""
    pool = BlockPool(3)
    pool.release(fill(pool, chain(1, 2)))
    assert pool.acquire(pool.match(chain(1, 2)), 2) is None
    assert pool.active_blocks == 0
    assert len(pool.match(chain(1, 2))) == 2


def test_each_copy_of_a_hash_has_its_own_events() -> None:
    pool = BlockPool(2)
    ids = fill(pool, chain(1, 1)) + fill(pool, chain(1, 1))
    assert pool.contents() == {chain(1, 1)[0]: 2}
    pool.release(ids)
    pool.acquire([], 1)
    events = pool.drain_events()
    assert [type(event) for event in events] == [BlockStored, BlockStored, BlockRemoved]
    assert len(pool.match(chain(1, 1))) == 1


def test_reset_is_refused_while_blocks_are_held() -> None:
    pool = BlockPool(2)
    ids = fill(pool, chain(1, 1))
    assert not pool.reset()
    pool.release(ids)
    assert pool.reset()
    assert pool.contents() == {}


def test_repeated_resets_pile_up_no_events() -> None:
    pool = BlockPool(2)
    for _ in range(3):
        pool.reset()
    assert pool.drain_events() == (AllBlocksCleared(),)


def test_only_the_root_of_a_salted_chain_names_the_salt() -> None:
    root = StoredRun((BlockHash(1), BlockHash(2)), None, (7, 8), 1, "salt").event()
    later = StoredRun((BlockHash(3),), BlockHash(2), (9,), 1, "salt").event()
    assert root.extra_keys == (("salt",), None)
    assert later.extra_keys == (None,)


def removals(events: tuple[KVEvent, ...]) -> list[BlockRemoved]:
    return [event for event in events if isinstance(event, BlockRemoved)]


@dataclass
class NaiveBlock:
    references: int = 0
    content: BlockHash | None = None
    stored_at: int = 0


@dataclass
class Held:
    """A sequence that holds blocks, the first `stored` of them under its chain's hashes."""

    name: int
    ids: list[BlockId]
    stored: int


@dataclass
class NaivePool:
    """The pool's rules, by scanning everything each time."""

    blocks: list[NaiveBlock] = field(
        default_factory=lambda: [NaiveBlock() for _ in range(TOTAL_BLOCKS)]
    )
    free: list[int] = field(default_factory=lambda: list(range(TOTAL_BLOCKS)))
    clock: int = 0

    def match(self, hashes: list[BlockHash]) -> list[int]:
        hits: list[int] = []
        for digest in hashes:
            copies = [i for i, block in enumerate(self.blocks) if block.content == digest]
            if not copies:
                break
            hits.append(min(copies, key=lambda i: self.blocks[i].stored_at))
        return hits

    def acquire(self, hits: list[int], fresh: int) -> list[int] | None:
        rest = [i for i in self.free if i not in hits]
        if fresh > len(rest):
            return None
        self.free = rest[fresh:]
        for i in hits:
            self.blocks[i].references += 1
        for i in rest[:fresh]:
            self.blocks[i] = NaiveBlock(references=1)
        return hits + rest[:fresh]

    def store(self, ids: list[BlockId], hashes: list[BlockHash]) -> None:
        for i, digest in zip(ids, hashes, strict=True):
            self.clock += 1
            self.blocks[i].content, self.blocks[i].stored_at = digest, self.clock

    def release(self, ids: list[BlockId]) -> None:
        for i in reversed(ids):
            self.blocks[i].references -= 1
            if self.blocks[i].references == 0:
                self.free.insert(0 if self.blocks[i].content is None else len(self.free), i)

    def contents(self) -> Counter[BlockHash]:
        return Counter(block.content for block in self.blocks if block.content is not None)


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
        hits = self.pool.match(chain(name, shared))
        assert hits == self.model.match(chain(name, shared))
        ids = self.pool.acquire(hits, fresh)
        assert ids == self.model.acquire(list(hits), fresh)
        if ids is not None:
            self.held.append(Held(name, ids, stored=len(hits)))

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def fill_blocks(self, data: st.DataObject) -> None:
        held = data.draw(st.sampled_from(self.held))
        end = data.draw(st.integers(held.stored, len(held.ids)))
        ids, hashes = held.ids[held.stored : end], chain(held.name, end)[held.stored :]
        if ids:
            self.pool.store(ids, run_of(hashes))
            self.model.store(ids, hashes)
            held.stored = end

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        held = data.draw(st.sampled_from(self.held))
        self.held.remove(held)
        self.pool.release(held.ids)
        self.model.release(held.ids)

    @rule()
    def reset(self) -> None:
        assert self.pool.reset() is not bool(any(held.ids for held in self.held))
        if not any(held.ids for held in self.held):
            for block in self.model.blocks:
                block.content = None

    @invariant()
    def books_agree(self) -> None:
        self.pool.check_integrity()
        assert self.pool.contents() == self.model.contents()
        assert self.pool.free_blocks == len(self.model.free)

    @invariant()
    def no_block_has_two_writers(self) -> None:
        writable = [i for held in self.held for i in held.ids[held.stored :]]
        assert len(writable) == len(set(writable))

    @invariant()
    def events_add_up_to_the_contents(self) -> None:
        for event in self.pool.drain_events():
            match event:
                case BlockStored():
                    self.announced.update(event.block_hashes)
                case BlockRemoved():
                    self.announced.subtract(event.block_hashes)
                case AllBlocksCleared():
                    self.announced.clear()
        assert +self.announced == self.pool.contents()
        assert min(self.announced.values(), default=0) >= 0


PoolBesideModel.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestPoolBesideModel = PoolBesideModel.TestCase
