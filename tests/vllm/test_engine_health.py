"""A dead or stuck engine is noticed, and takes nobody down with it silently."""

import asyncio
import signal
from contextlib import aclosing
from pathlib import Path

import psutil
import pytest

from router.core.errors import EngineDead, EngineError
from tests.contract.engine_client import fresh_prompt, make_request
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
        await engine.check_health()
        running.core.send_signal(signal.SIGSTOP)
        try:
            await asyncio.sleep(HEALTH_CHECK_TIMEOUT_S + 0.5)
            with pytest.raises(EngineDead):
                await engine.check_health()
        finally:
            running.core.send_signal(signal.SIGCONT)
        await asyncio.sleep(0.5)
        await engine.check_health()
    await running.client.until_idle()


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
