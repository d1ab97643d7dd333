"""The server of one replica, with a simulated engine."""

import asyncio
import json
import os
import time
from dataclasses import replace
from typing import Any

import pytest

from replicas.engines.protocol import EngineRequest, Routing
from replicas.server import LLMServer
from replicas.settlement import Cause, Settlement
from router.core.errors import ConfigurationError, EngineDead, RequestRejected
from router.core.types import BookingId, ReplicaId
from tests.contract.engine_client import fresh_prompt, make_request

FAST = {"prefill_ms_per_token": 0.0, "prefill_base_ms": 0.1, "decode_ms_per_token": 0.1}


def server(**sim: Any) -> LLMServer:
    return LLMServer({"name": "m", "engine": "sim", "sim": FAST | sim})


async def collect(replica: LLMServer, request: EngineRequest) -> list[bytes]:
    return [item async for item in replica.generate(request) if isinstance(item, bytes)]


def routed(request: EngineRequest, *forecast_blocks: int) -> EngineRequest:
    """As if another replica had been chosen."""
    overlaps = (0,) * len(forecast_blocks)
    routing = Routing(BookingId(1), (ReplicaId("other"),), overlaps, forecast_blocks, None, 0.0)
    return replace(request, routing=routing)


async def test_metadata_describes_engine_and_replica_as_plain_data(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PYTHONHASHSEED", "7")
    before_ns = time.time_ns()
    replica = server(block_size=16)
    metadata = await replica.record_replica_metadata()
    assert (metadata["model"], metadata["block_size"]) == ("m", 16)
    assert (metadata["hash_algorithm"], metadata["hash_seed"]) == ("xxh3_64", "7")
    assert metadata["replica_id"] == f"process-{os.getpid()}"
    assert before_ns < metadata["incarnation"] < time.time_ns()
    assert json.loads(json.dumps(metadata)) == metadata
    await replica.shutdown()


async def test_a_started_replica_has_an_empty_cache() -> None:
    replica = server()
    assert (await replica.cache_counters())["blocks"] == 0
    await replica.shutdown()


@pytest.mark.parametrize("is_stream", [True, False])
async def test_a_settlement_ends_the_answer_to_a_routed_request_only(is_stream: bool) -> None:
    replica = server(block_size=4, max_model_len=200)
    request = make_request(fresh_prompt(9), is_stream=is_stream)
    plain = [item async for item in replica.generate(request)]
    assert all(isinstance(item, bytes) for item in plain)
    *answer, settled = [item async for item in replica.generate(routed(request, 0))]
    assert answer
    assert all(isinstance(item, bytes) for item in answer)
    assert settled == Settlement(4, (8,), (0,), (Cause.REROUTED,))
    *_, settled = [item async for item in replica.generate(routed(request, 2))]
    assert settled == Settlement(4, (8,), (2,), (None,))
    await replica.shutdown()


async def test_a_reset_is_in_the_books_before_the_engine_says_so() -> None:
    replica = server(block_size=4, max_model_len=200)
    await collect(replica, make_request(fresh_prompt(9)))
    assert await replica.reset_prefix_cache()
    assert (await replica.cache_counters())["blocks"] == 0
    await replica.shutdown()


async def test_the_first_callers_share_one_start() -> None:
    replica = server()
    request = make_request(fresh_prompt(10))
    first, metadata, _ = await asyncio.gather(
        collect(replica, request), replica.record_replica_metadata(), replica.check_health()
    )
    assert isinstance(first[0], bytes)
    assert json.loads(first[0])["usage"]["prompt_tokens"] == 10
    assert await replica.record_replica_metadata() == metadata
    await replica.shutdown()


async def test_a_caller_that_gives_up_does_not_stop_the_start() -> None:
    replica = server()
    impatient = asyncio.create_task(replica.check_health())
    await asyncio.sleep(0)
    impatient.cancel()
    await replica.check_health()
    await replica.shutdown()


async def test_a_failed_start_fails_health_for_good() -> None:
    replica = server(max_model_len=10_000, total_blocks=2)
    for _ in range(2):
        with pytest.raises(ConfigurationError, match="max_model_len"):
            await replica.check_health()
    await replica.shutdown()


async def test_refusals_reach_the_caller_before_any_part() -> None:
    replica = server()
    with pytest.raises(RequestRejected):
        await collect(replica, make_request(fresh_prompt(10), temperature="hot", is_stream=True))
    await replica.shutdown()


async def test_leaving_a_stream_frees_the_engine() -> None:
    replica = server(decode_ms_per_token=5)
    parts = replica.generate(make_request(fresh_prompt(10), is_stream=True, max_tokens=5000))
    await anext(parts)
    assert await replica.num_unfinished() == 1
    await parts.aclose()
    assert await replica.num_unfinished() == 0
    assert await replica.reset_prefix_cache()
    await replica.shutdown()


async def test_after_the_shutdown_the_replica_is_unhealthy() -> None:
    replica = server()
    await replica.check_health()
    await replica.shutdown()
    await replica.shutdown()
    with pytest.raises(EngineDead):
        await replica.check_health()
