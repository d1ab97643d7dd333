"""A real engine in a Serve replica: answers, errors and cancellation over both transports."""

import asyncio
import json
import os
import time
from collections.abc import Iterator
from typing import Any

import psutil
import pytest

from replicas.deployment import build_deployment
from replicas.engines.protocol import EngineRequest
from router.core.errors import RequestRejected, WarmpathError
from tests.contract.engine_client import fresh_prompt, make_request
from tests.vllm.conftest import tiny_model

pytestmark = [pytest.mark.vllm, pytest.mark.ray]

TRANSPORTS = pytest.mark.parametrize("is_grpc", [False, True], ids=["actor", "grpc"])


class Caller:
    """Stands where the ingress stands: inside a Serve replica, with a handle to the model."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle

    def _generate(self, request: EngineRequest, *, is_grpc: bool) -> Any:
        method = self._handle.options(
            method_name="generate", stream=True, _by_reference=not is_grpc
        )
        return method.remote(request)

    async def answer(self, request: EngineRequest, is_grpc: bool) -> list[bytes]:
        items = self._generate(request, is_grpc=is_grpc)
        return [item async for item in items if isinstance(item, bytes)]

    async def refusal(self, request: EngineRequest, is_grpc: bool) -> dict[str, Any]:
        """What an ingress learns of a failure, by the types and attributes that it uses."""
        try:
            await self.answer(request, is_grpc)
        except RequestRejected as error:
            return {"status": error.status, "param": error.param, "message": error.message}
        except WarmpathError as error:
            return {"kind": type(error).__name__, "message": error.message}
        return {}

    async def seconds_until_idle(self, request: EngineRequest, is_grpc: bool) -> float:
        """Abandons a stream after its first part."""
        parts = self._generate(request, is_grpc=is_grpc)
        await anext(parts)
        assert await self._handle.num_unfinished.remote() == 1
        parts.cancel()
        loop = asyncio.get_running_loop()
        start_s = loop.time()
        async with asyncio.timeout(10):
            while await self._handle.num_unfinished.remote():  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        return loop.time() - start_s

    async def reset(self) -> bool:
        return bool(await self._handle.reset_prefix_cache.remote())


@pytest.fixture(scope="module")
def caller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    import ray
    from ray import serve

    os.environ["RAY_AUTH_MODE"] = "disabled"
    ray.init(
        num_cpus=4,
        include_dashboard=False,
        _temp_dir=f"/tmp/wp-{os.getpid()}",
        log_to_driver=False,
        runtime_env={"env_vars": {"PYTHONPATH": os.getcwd()}},
    )
    serve.start(proxy_location="Disabled")
    front = serve.deployment(ray_actor_options={"num_cpus": 0})(Caller)
    model = tiny_model(cpus_per_replica=0.5)
    yield serve.run(front.bind(build_deployment(model)), route_prefix=None)
    serve.shutdown()
    ray.shutdown()


@TRANSPORTS
def test_answers_cross(caller: Any, is_grpc: bool) -> None:
    (document,) = caller.answer.remote(make_request(fresh_prompt(40)), is_grpc).result()
    assert json.loads(document)["usage"]["prompt_tokens"] == 40
    parts = caller.answer.remote(make_request(fresh_prompt(40), is_stream=True), is_grpc).result()
    assert len(parts) > 3
    assert parts[-1] == b"data: [DONE]\n\n"


@TRANSPORTS
@pytest.mark.parametrize("is_stream", [False, True])
def test_refusals_cross_with_status_and_field(caller: Any, is_grpc: bool, is_stream: bool) -> None:
    request = make_request(fresh_prompt(40), is_stream=is_stream, top_p=3)
    refusal = caller.refusal.remote(request, is_grpc).result()
    assert (refusal["status"], refusal["param"]) == (400, "top_p")
    assert refusal["message"]


@TRANSPORTS
def test_abandoned_streams_free_the_engine_within_a_second(caller: Any, is_grpc: bool) -> None:
    request = make_request(fresh_prompt(40), is_stream=True, max_tokens=5000)
    assert caller.seconds_until_idle.remote(request, is_grpc).result() < 1
    assert caller.reset.remote().result()


@pytest.mark.slow
def test_a_replica_whose_engine_died_is_replaced(caller: Any) -> None:
    request = make_request(fresh_prompt(40))
    caller.answer.remote(request, False).result()
    (engine,) = _engine_processes()
    engine.kill()
    refusal = caller.refusal.remote(request, False).result()
    assert refusal["kind"].endswith("(EngineDead)")
    deadline_s = time.monotonic() + 150
    while caller.refusal.remote(make_request(fresh_prompt(40)), False).result():
        assert time.monotonic() < deadline_s
        time.sleep(1)
    (successor,) = _engine_processes()
    assert successor.pid != engine.pid


def _engine_processes() -> list[psutil.Process]:
    """Of the replicas of this test's own Ray; engines of other tests are direct children."""
    own = os.getpid()
    return [
        process
        for process in psutil.Process().children(recursive=True)
        if process.name().startswith("VLLM::EngineCor") and process.ppid() != own
    ]
