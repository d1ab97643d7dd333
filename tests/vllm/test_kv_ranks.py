"""An engine of two ranks through a store: each rank has its part, and a text needs both."""

from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio
import ray

from replicas.kv.store.objects import ObjectKey
from tests.vllm.stored_engine import (
    OBJECT_TOKENS,
    Engine,
    Object,
    own_cluster,
    prompt,
    stored_engine,
)

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]

RANKS = 2
LENGTH = 3 * OBJECT_TOKENS + 9


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with own_cluster(tmp_path_factory.mktemp("ray")) as address:
        yield address


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(cluster: str) -> AsyncIterator[Engine]:
    async with stored_engine(cluster, tensor_parallel_size=RANKS) as engine:
        yield engine


def part(key: bytes, rank: int) -> bytes:
    return ObjectKey.unpack(key).of_rank(rank).pack()


async def saved(engine: Engine, seed: int) -> tuple[list[int], list[int]]:
    """A prompt and its text, once every rank's part of it is in the store."""
    tokens = prompt(LENGTH, seed)
    text = await engine.save(tokens)
    await engine.stored(tokens, RANKS)
    return tokens, text


async def test_text_after_a_load_is_the_text_of_a_cold_run(engine: Engine) -> None:
    tokens, expected = await saved(engine, 1)
    runs = engine.store.runs(tokens)
    parts = {part(run.key, rank) for run in runs for rank in range(RANKS)}
    assert {item.key for item in engine.store.objects()} == parts
    assert await engine.loaded(tokens, runs) == (expected, 3 * OBJECT_TOKENS)


@pytest.mark.parametrize("rank", range(RANKS))
async def test_a_part_that_is_gone_is_computed_and_saved_again(engine: Engine, rank: int) -> None:
    tokens, expected = await saved(engine, 2 + rank)
    runs = engine.store.runs(tokens)
    ray.get(engine.store.actor.discard.remote([part(runs[1].key, rank)]), timeout=30)
    assert (await engine.loaded(tokens, runs))[0] == expected
    assert await saved(engine, 2 + rank) == (tokens, expected)
    assert await engine.loaded(tokens, runs) == (expected, 3 * OBJECT_TOKENS)


async def test_ranks_never_take_each_others_parts(engine: Engine) -> None:
    tokens, expected = await saved(engine, 5)
    runs = engine.store.runs(tokens)
    bytes_of = {rank: engine.store.look(part(runs[0].key, rank)) for rank in range(RANKS)}

    def others(rank: int) -> Object:
        return bytes_of[1 - rank].copy()

    for rank in range(RANKS):
        engine.store.change(part(runs[0].key, rank), lambda data, r=rank: others(r))
    assert (await engine.loaded(tokens, runs))[0] == expected
