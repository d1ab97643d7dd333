"""The simulated engine's own traits: faults on demand, idleness, what it does to blocks."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

import pytest

from replicas.engines.protocol import EngineReport, EngineRequest
from replicas.engines.sim import SimEngine
from replicas.engines.sim_faults import FaultKind, SimFault
from router.configuration import SimConfig
from router.core.errors import ConfigurationError, EngineDead, EngineError
from tests.contract.engine_client import collect
from tests.unit.replicas.sim.requests import make_request

CONFIG = SimConfig(
    block_size=4,
    total_blocks=64,
    max_model_len=200,
    prefill_ms_per_token=0,
    prefill_base_ms=0,
    decode_ms_per_token=1,
)
STUCK_AFTER_S = 0.02


@pytest.fixture
async def engine() -> AsyncIterator[SimEngine]:
    engine = SimEngine(CONFIG, "m", stuck_after_s=STUCK_AFTER_S)
    await engine.start()
    yield engine
    await engine.stop()


async def read(engine: SimEngine, request: EngineRequest) -> list[bytes]:
    return await collect(engine, request)


def streamed(max_tokens: int) -> EngineRequest:
    return make_request([1] * 10, is_stream=True, max_tokens=max_tokens)


async def test_a_context_longer_than_the_pool_dies_at_start() -> None:
    with pytest.raises(ConfigurationError) as refusal:
        SimEngine(SimConfig(total_blocks=2, block_size=4, max_model_len=9), "m")
    assert refusal.value.key == "sim.max_model_len"


async def test_dying_fails_every_request_and_the_health_check(engine: SimEngine) -> None:
    engine.inject(SimFault(FaultKind.DIE, after_tokens=5))
    requests = [asyncio.create_task(read(engine, streamed(50))) for _ in range(3)]
    outcomes = await asyncio.gather(*requests, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [EngineDead] * 3
    with pytest.raises(EngineDead):
        await engine.check_health()
    with pytest.raises(EngineDead):
        await read(engine, streamed(1))
    assert engine.num_unfinished() == 0


async def test_what_was_said_before_a_failure_still_arrives(engine: SimEngine) -> None:
    engine.inject(SimFault(FaultKind.FAIL_REQUEST, after_tokens=3))
    said = []
    with pytest.raises(EngineError) as failure:
        async with aclosing(engine.generate(streamed(50))) as parts:
            async for part in parts:
                assert isinstance(part, bytes)
                said.append(part)
    assert b"".join(said).count(b"data: ") == 3
    assert not isinstance(failure.value, EngineDead)


async def test_a_failed_request_leaves_the_engine_healthy(engine: SimEngine) -> None:
    engine.inject(SimFault(FaultKind.FAIL_REQUEST))
    with pytest.raises(EngineError):
        await read(engine, streamed(2))
    await engine.check_health()
    assert engine.active_blocks == 0
    assert await read(engine, streamed(2))


async def test_a_standstill_becomes_a_failed_health_check(engine: SimEngine) -> None:
    engine.inject(SimFault(FaultKind.STALL, after_tokens=1))
    async with aclosing(engine.generate(streamed(50))) as parts:
        await anext(parts)
        await engine.check_health()
        await asyncio.sleep(2 * STUCK_AFTER_S)
        with pytest.raises(EngineDead):
            await engine.check_health()


async def test_an_idle_engine_is_not_stuck(engine: SimEngine) -> None:
    await read(engine, streamed(2))
    await asyncio.sleep(2 * STUCK_AFTER_S)
    await engine.check_health()


async def test_stopping_fails_what_runs_and_removes_the_sockets() -> None:
    engine = SimEngine(CONFIG, "m")
    info = await engine.start()
    folder = Path(str(info.kv_events_endpoint).removeprefix("ipc://")).parent
    reader = asyncio.create_task(read(engine, streamed(100)))
    while engine.num_unfinished() == 0:  # noqa: ASYNC110
        await asyncio.sleep(0)
    await engine.stop()
    with pytest.raises(EngineDead):
        await reader
    assert not folder.exists()


async def test_closing_a_stream_frees_its_blocks_before_it_returns(engine: SimEngine) -> None:
    parts = engine.generate(streamed(100))
    await anext(parts)
    assert engine.active_blocks == 3
    await parts.aclose()
    assert (engine.active_blocks, engine.num_unfinished()) == (0, 0)


async def test_a_slow_reader_gets_what_piled_up_in_one_item(engine: SimEngine) -> None:
    async with aclosing(engine.generate(streamed(5))) as parts:
        first = await anext(parts)
        while engine.num_unfinished():  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        rest, report = [part async for part in parts]
    assert isinstance(first, bytes)
    assert isinstance(rest, bytes)
    assert (first + rest).count(b"data: ") == 6
    assert report == EngineReport((0,))
