"""The oracle against the simulator's own block pool, and against small cases known by hand."""

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from replicas.sim.pool import BlockPool
from replicas.sim.sequence import SimSequence
from router.core.types import BlockHash
from router.replay.lru_blocks import LruBlocks, Served
from serve_app.bench.cache_oracle import Oracle

BLOCK_SIZE = 4


def served(*chain: int, tail_tokens: int = 2) -> Served:
    """A prompt of these full blocks and a few tokens more."""
    return Served(chain, len(chain) + 1, len(chain) * BLOCK_SIZE + tail_tokens)


def oracle(cache_blocks: int, requests: list[Served], talks: str) -> Oracle:
    empty = LruBlocks(cache_blocks)
    return Oracle((empty, empty), tuple(requests), tuple(talks), BLOCK_SIZE)


def test_a_repeated_prompt_is_reused_but_for_its_last_block() -> None:
    cache = LruBlocks(10)
    whole = Served((1, 2), 2, 2 * BLOCK_SIZE)
    assert cache.serve(whole, BLOCK_SIZE) == 0
    assert cache.serve(whole, BLOCK_SIZE) == 1
    assert cache.serve(served(1, 2), BLOCK_SIZE) == 2


def test_the_end_of_a_prompt_is_evicted_before_its_start() -> None:
    cache = LruBlocks(4)
    cache.serve(served(1, 2, 3), BLOCK_SIZE)
    cache.serve(served(9), BLOCK_SIZE)
    assert cache.overlap(served(1, 2, 3), BLOCK_SIZE) == 2


def test_a_copy_lives_on_its_own() -> None:
    cache = LruBlocks(4)
    cache.serve(served(1, 2), BLOCK_SIZE)
    cache.copy().serve(served(7, 8, 9), BLOCK_SIZE)
    assert cache.overlap(served(1, 2), BLOCK_SIZE) == 2


def chain_of(path: list[int]) -> tuple[int, ...]:
    """Chained like block hashes: equal names only after equal beginnings."""
    return tuple(hash(tuple(path[: end + 1])) & (2**60 - 1) for end in range(len(path)))


@settings(deadline=None, max_examples=200)
@given(
    paths=st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=6), max_size=25),
    blocks=st.integers(7, 14),
)
def test_evicts_as_the_simulated_engine_does(paths: list[list[int]], blocks: int) -> None:
    """One request after the other, the same reuse of each."""
    cache, pool = LruBlocks(blocks), BlockPool(blocks)
    for path in paths:
        request = served(*chain_of(path))
        assert cache.serve(request, BLOCK_SIZE) == serve_in_pool(pool, request)


def serve_in_pool(pool: BlockPool, request: Served) -> int:
    hashes = [BlockHash(block) for block in request.chain]
    hits = pool.match(hashes, len(hashes))
    taken = pool.acquire(hits, request.total_blocks - len(hits))
    assert taken is not None
    owner = SimSequence(request.total_blocks * BLOCK_SIZE, 1, hashes)
    pool.store(taken[len(hits) : len(hashes)], owner, len(hits))
    pool.release(taken)
    return len(hits)


def test_finds_that_two_talks_fit_only_apart() -> None:
    """Together in one cache they evict each other each time."""
    requests = [served(1, 2, 3), served(7, 8, 9)] * 3
    question = oracle(5, requests, "ababab")
    assert question.reused_blocks([0] * 6) < 12
    assert question.best([0] * 6, Random(1)) == 12


def test_is_never_worse_than_what_was_observed() -> None:
    rng = Random(5)
    requests = [served(*chain_of(rng.choices(range(2), k=5))) for _ in range(30)]
    talks = "".join(rng.choices("abcd", k=30))
    question = oracle(9, requests, talks)
    for _ in range(5):
        observed = rng.choices((0, 1), k=30)
        assert question.best(observed, rng, sweeps=1) >= question.reused_blocks(observed)


def test_goes_on_from_the_caches_that_an_assignment_leaves() -> None:
    question = oracle(8, [served(1, 2), served(7, 8)], "ab")
    left, right = question.caches_after([0, 1])
    assert left.overlap(served(1, 2), BLOCK_SIZE) == 2
    assert left.overlap(served(7, 8), BLOCK_SIZE) == 0
    assert right.overlap(served(7, 8), BLOCK_SIZE) == 2
