"""A thousand loads that go wrong in a real engine: the text of a cold run, always."""

import asyncio
import itertools
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import pytest_asyncio

from tests.vllm.faulty_connector import CHECKED, FAULTS, OBJECT_BLOCKS, SLOW_S, UNCHECKED
from tests.vllm.stored_engine import BLOCK_SIZE, Tokens, engine_with, forget, greedy

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]

OBJECT_TOKENS = BLOCK_SIZE * OBJECT_BLOCKS
OBJECTS, NEW_TOKENS, PROMPTS = 5, 6, 10
LOADS = 1000

NOTHING, REUSE = {"keeping": "nothing"}, {"keeping": "reuse"}


class Engine:
    """Prompts that it has saved, each with the text of its cold run."""

    def __init__(self, llm: Any) -> None:
        self._llm = llm
        self.prompts: list[Tokens] = []
        self.texts: list[Tokens] = []

    async def text(self, tokens: Tokens, wanted: dict[str, object]) -> tuple[Tokens, int]:
        return await greedy(self._llm, tokens, wanted, NEW_TOKENS)

    async def forget(self) -> None:
        await forget(self._llm)

    async def save(self) -> None:
        for number in range(PROMPTS):
            draw = random.Random(number)
            length = OBJECTS * OBJECT_TOKENS + 1 + draw.randrange(OBJECT_TOKENS)
            self.prompts.append([draw.randrange(3, 1000) for _ in range(length)])
            self.texts.append((await self.text(self.prompts[-1], REUSE))[0])
        await asyncio.sleep(0.5)

    async def loaded(self, faults: list[tuple[str, int]]) -> list[tuple[Tokens, int]]:
        """All prompts at once, each with its fault, on an engine that has nothing itself."""
        await self.forget()
        return await asyncio.gather(
            *(
                self.text(tokens, NOTHING | {"fault": fault, "place": place})
                for tokens, (fault, place) in zip(self.prompts, faults, strict=True)
            )
        )


@asynccontextmanager
async def engine_of(name: str) -> AsyncIterator[Engine]:
    llm = engine_with(
        {"cluster": "", "namespace": "", "store_id": name, "model": "tiny"},
        OBJECT_BLOCKS,
        connector="FaultyConnector",
        module="tests.vllm.faulty_connector",
        max_model_len=1024,
        kv_cache_memory_bytes=64 * 2**20,
    )
    try:
        engine = Engine(llm)
        await engine.save()
        yield engine
    finally:
        llm.shutdown()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine() -> AsyncIterator[Engine]:
    async with engine_of(CHECKED) as engine:
        yield engine


def drawn(seed: int) -> list[tuple[str, int]]:
    draw = random.Random(seed)
    usual = [fault for fault in FAULTS if fault != "slow"]
    return [(draw.choice(usual), draw.randrange(OBJECTS)) for _ in range(PROMPTS)]


@pytest.mark.timeout(900)
async def test_a_thousand_faulted_loads_bring_the_text_of_a_cold_run(engine: Engine) -> None:
    for seed in range(LOADS // PROMPTS):
        faults = drawn(seed)
        answers = await engine.loaded(faults)
        for (text, cached), expected, (fault, place) in zip(
            answers, engine.texts, faults, strict=True
        ):
            assert text == expected, (fault, place)
            assert cached == OBJECTS * OBJECT_TOKENS or fault != "none", place


@pytest.mark.parametrize("fault", ["flip", "cut", "drop", "gone"])
async def test_a_fault_in_the_third_of_five_costs_that_and_the_rest(
    engine: Engine, fault: str
) -> None:
    """And the engine goes on: the next load of the same prompts is whole."""
    for faults in ([(fault, 2)] * PROMPTS, [("none", 0)] * PROMPTS):
        answers = await engine.loaded(faults)
        assert [text for text, _ in answers] == engine.texts
    assert [cached for _, cached in answers] == [OBJECTS * OBJECT_TOKENS] * PROMPTS


async def test_requests_that_leave_during_their_load_leave_nothing(engine: Engine) -> None:
    await engine.forget()
    slow = NOTHING | {"fault": "slow", "place": 1}
    leaving = [asyncio.create_task(engine.text(tokens, slow)) for tokens in engine.prompts]
    await asyncio.sleep(SLOW_S / 2)
    for task in leaving:
        task.cancel()
    await asyncio.gather(*leaving, return_exceptions=True)
    answers = await engine.loaded([("none", 0)] * PROMPTS)
    assert [text for text, _ in answers] == engine.texts
    await engine.forget()


async def test_with_the_checksum_off_the_text_differs() -> None:
    """That the tests above can fail."""
    async with engine_of(UNCHECKED) as unchecked:
        for fault, place in itertools.product(("flip", "zero"), range(OBJECTS)):
            answers = await unchecked.loaded([(fault, place)] * PROMPTS)
            assert [text for text, _ in answers] != unchecked.texts
        whole = await unchecked.loaded([("none", 0)] * PROMPTS)
        assert [text for text, _ in whole] == unchecked.texts
