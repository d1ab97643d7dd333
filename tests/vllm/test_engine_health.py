"""A dead or stuck engine is noticed, and takes nobody down with it silently."""

import asyncio
import signal
from contextlib import aclosing
from pathlib import Path

import psutil
import pytest

from replicas.engines.protocol import Engine
from replicas.engines.vllm.opening import open_engine
from router.core.errors import EngineDead, EngineError
from tests.contract.engine_client import (
    cached_tokens,
    collect,
    fresh_prompt,
    make_request,
    texts,
)
from tests.vllm.conftest import HEALTH_CHECK_TIMEOUT_S, RunningEngine, start_engine, tiny_model

pytestmark = [pytest.mark.vllm, pytest.mark.asyncio(loop_scope="session")]


@pytest.mark.parametrize("is_busy", [True, False])
async def test_a_stuck_engine_is_unhealthy_until_it_goes_on(
    running: RunningEngine, is_busy: bool
) -> None:
    engine = running.engine
    parts = engine.generate(make_request(fresh_prompt(20), is_stream=True, max_tokens=3000))
    async with aclosing(parts):
        if is_busy:
            await anext(parts)
        await until_healthy(engine)
        running.core.send_signal(signal.SIGSTOP)
        try:
            await asyncio.sleep(HEALTH_CHECK_TIMEOUT_S + 0.5)
            with pytest.raises(EngineDead):
                await engine.check_health()
        finally:
            running.core.send_signal(signal.SIGCONT)
        await until_healthy(engine)
    await running.client.until_idle()


async def until_healthy(engine: Engine) -> None:
    """A busy machine may hold an engine up for longer than its limit."""
    for _ in range(100):
        try:
            return await engine.check_health()
        except EngineDead:
            await asyncio.sleep(0.1)
    raise AssertionError("the engine did not go on")


async def test_a_killed_engine_fails_its_streams_and_its_health(engine_log: Path) -> None:
    started = await start_engine(tiny_model(), engine_log)
    processes = [started.core, *started.core.children(recursive=True)]
    request = make_request(fresh_prompt(20), is_stream=True, max_tokens=5000)
    said = b""
    parts = started.engine.generate(request)
    said += await anext(parts)
    started.core.kill()
    with pytest.raises(EngineError):
        async with asyncio.timeout(10):
            async for part in parts:
                said += part
    assert b"[DONE]" not in said
    assert b"error" not in said
    with pytest.raises(EngineDead):
        await started.engine.check_health()
    with pytest.raises(EngineDead):
        await anext(started.engine.generate(make_request(fresh_prompt(20))))
    await started.engine.stop()
    gone, alive = psutil.wait_procs(processes, timeout=10)
    assert not alive


async def test_stopping_fails_what_is_in_flight_and_ends_every_process(engine_log: Path) -> None:
    started = await start_engine(tiny_model(), engine_log)
    processes = [started.core, *started.core.children(recursive=True)]
    parts = started.engine.generate(make_request(fresh_prompt(20), is_stream=True, max_tokens=5000))
    await anext(parts)
    waiting = asyncio.create_task(
        collect(started.engine, make_request(fresh_prompt(20), max_tokens=5000))
    )
    await asyncio.sleep(0.1)
    await started.engine.stop()
    with pytest.raises(EngineError):
        async with asyncio.timeout(5):
            async for _ in parts:
                pass
    with pytest.raises(EngineError):
        await waiting
    assert started.engine.num_unfinished() == 0
    _, alive = psutil.wait_procs(processes, timeout=10)
    assert not alive
    assert not Path(str(started.info.kv_events_endpoint).removeprefix("ipc://")).parent.exists()


@pytest.mark.slow
async def test_a_start_that_is_abandoned_leaves_no_process(engine_log: Path) -> None:
    before = {child.pid for child in psutil.Process().children()}
    engine = open_engine(tiny_model())
    start = asyncio.create_task(engine.start())
    async with asyncio.timeout(60):
        while not (made := _engines(before)):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    start.cancel()
    with pytest.raises(asyncio.CancelledError):
        await start
    _, alive = await asyncio.to_thread(psutil.wait_procs, made, timeout=90)
    assert not alive
    await engine.stop()


def _engines(before: set[int]) -> list[psutil.Process]:
    return [
        child
        for child in psutil.Process().children()
        if child.pid not in before and child.name().startswith("VLLM::EngineCor")
    ]


@pytest.mark.slow
async def test_tensor_parallel_ranks_answer_as_one_engine(engine_log: Path) -> None:
    """Two ranks as processes of this one, as in a replica's own placement group bundle."""
    started = await start_engine(tiny_model(tensor_parallel_size=2), engine_log)
    prompt = fresh_prompt(3 * started.info.block_size + 1)
    cold, warm = [await started.client.ask(prompt, max_tokens=12) for _ in range(2)]
    assert [cached_tokens(answer) for answer in (cold, warm)] == [0, 3 * started.info.block_size]
    assert texts(cold) == texts(warm)
    assert len([p for p in started.core.children() if p.name().startswith("VLLM::Worker")]) == 2
    await started.engine.stop()
