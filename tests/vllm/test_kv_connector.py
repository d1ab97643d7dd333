"""Real engines through a store: the same text as without, whatever happens to the stored bytes."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator

import numpy as np
import pytest
import pytest_asyncio
import ray

from replicas.kv.store.objects import HEADER_BYTES, ObjectKey, form_of, seal
from router.core.transfer import TransferRequest
from tests.vllm.stored_engine import (
    BLOCK_SIZE,
    OBJECT_BLOCKS,
    OBJECT_TOKENS,
    Engine,
    Object,
    own_cluster,
    prompt,
    stored_engine,
)

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with own_cluster(tmp_path_factory.mktemp("ray")) as address:
        yield address


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(cluster: str) -> AsyncIterator[Engine]:
    async with stored_engine(cluster) as engine:
        yield engine


@pytest.mark.parametrize("length", [OBJECT_TOKENS + 1, 3 * OBJECT_TOKENS, 5 * OBJECT_TOKENS + 77])
async def test_text_after_a_load_is_the_text_of_a_cold_run(engine: Engine, length: int) -> None:
    tokens = prompt(length, length)
    expected = await engine.save(tokens)
    text, cached = await engine.loaded(tokens, engine.store.runs(tokens))
    assert text == expected
    assert cached == min(length // OBJECT_TOKENS * OBJECT_TOKENS, (length - 1) // BLOCK_SIZE * 32)


async def test_what_the_engine_has_itself_is_not_loaded(engine: Engine) -> None:
    tokens = prompt(4 * OBJECT_TOKENS + 5, 1)
    expected = await engine.save(tokens)
    runs = engine.store.runs(tokens)
    await engine.forget()
    await engine.text(tokens[: OBJECT_TOKENS + 2 * BLOCK_SIZE + 1], TransferRequest())
    text, cached = await engine.text(tokens, TransferRequest(runs))
    assert (text, cached) == (expected, 4 * OBJECT_TOKENS)


async def test_a_conversation_goes_on_from_what_is_stored(engine: Engine) -> None:
    """Each turn on an engine that has nothing: from its whole history saved by the turn before."""
    history = prompt(OBJECT_TOKENS - 10, 2)
    for turn in range(6):
        expected = await engine.save(history)
        text, cached = await engine.loaded(history, engine.store.runs(history))
        assert text == expected
        assert cached == (len(history) - 1) // OBJECT_TOKENS * OBJECT_TOKENS
        history += text + prompt(61, 100 + turn)


async def test_another_salt_finds_nothing(engine: Engine) -> None:
    tokens = prompt(2 * OBJECT_TOKENS + 3, 3)
    await engine.save(tokens, "tenant-a")
    stolen = engine.store.runs(tokens, "tenant-a")
    assert len(stolen) == 2
    assert engine.store.runs(tokens, "tenant-b") == ()
    await engine.forget()
    _, cached = await engine.text(tokens, TransferRequest(stolen), "tenant-b")
    assert cached == 0


def flipped(data: Object) -> Object:
    data[HEADER_BYTES + data.nbytes // 2] ^= 0x40
    return data


async def test_damaged_bytes_with_a_right_checksum_would_show(engine: Engine) -> None:
    """That the other tests can fail: the text does depend on what is loaded."""
    tokens = prompt(3 * OBJECT_TOKENS + 9, 4)
    expected = await engine.save(tokens)
    runs = engine.store.runs(tokens)

    def forged(data: Object) -> Object:
        data[HEADER_BYTES:] = np.roll(data[HEADER_BYTES:], 64)
        seal(data, ObjectKey.unpack(runs[1].key), OBJECT_BLOCKS, form_of(data))
        return data

    engine.store.change(runs[1].key, forged)
    text, cached = await engine.loaded(tokens, runs)
    assert cached == 3 * OBJECT_TOKENS
    assert text != expected


@pytest.mark.parametrize("place", range(3))
@pytest.mark.parametrize(
    "change", [flipped, lambda data: data[:-1], lambda data: data[:50]], ids=["flip", "cut", "stub"]
)
async def test_a_damaged_object_is_computed_instead_and_replaced(
    engine: Engine, place: int, change: Callable[[Object], Object]
) -> None:
    tokens = prompt(3 * OBJECT_TOKENS + 9, 5)
    expected = await engine.save(tokens)
    runs = engine.store.runs(tokens)
    engine.store.change(runs[place].key, change)
    text, _ = await engine.loaded(tokens, runs)
    assert text == expected
    assert await engine.save(tokens) == expected
    assert (await engine.loaded(tokens, engine.store.runs(tokens)))[0] == expected


async def test_objects_that_are_gone_are_computed(engine: Engine) -> None:
    tokens = prompt(3 * OBJECT_TOKENS + 9, 6)
    expected = await engine.save(tokens)
    runs = engine.store.runs(tokens)
    ray.get(engine.store.actor.discard.remote([runs[1].key]), timeout=30)
    assert (await engine.loaded(tokens, runs))[0] == expected


async def test_a_store_that_dies_costs_time_only(engine: Engine) -> None:
    tokens = prompt(3 * OBJECT_TOKENS + 9, 7)
    expected = await engine.save(tokens)
    runs = engine.store.runs(tokens)
    ray.kill(engine.store.actor, no_restart=True)
    assert (await engine.loaded(tokens, runs))[0] == expected
    engine.store.restart()
    await asyncio.sleep(1)
    assert await engine.save(tokens) == expected
    assert (await engine.loaded(tokens, engine.store.runs(tokens)))[0] == expected


async def test_requests_that_share_a_prefix_load_it_side_by_side(engine: Engine) -> None:
    shared = prompt(2 * OBJECT_TOKENS, 8)
    prompts = [shared + prompt(50 + 13 * number, 80 + number) for number in range(6)]
    expected = [await engine.save(tokens) for tokens in prompts]
    await engine.forget()
    plans = [TransferRequest(engine.store.runs(tokens)) for tokens in prompts]
    texts = await asyncio.gather(
        *[engine.text(tokens, plan) for tokens, plan in zip(prompts, plans, strict=True)]
    )
    assert [text for text, _ in texts] == expected
