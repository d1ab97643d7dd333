"""One local Ray cluster and one application of simulated models for all tests here."""

import os
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

os.environ["RAY_AUTH_MODE"] = "disabled"
os.environ.setdefault("RAY_SERVE_LOG_TO_STDERR", "0")

import httpx
import pytest
import ray
from ray import serve

from replicas.deployment import deployment_options
from replicas.engines.sim_faults import SimFault
from replicas.server import LLMServer
from router.configuration import AppConfig
from serve_app.app import build_ingress

FAST = {"prefill_ms_per_token": 0.01, "prefill_base_ms": 1.0, "decode_ms_per_token": 1.0}
SLOW = {"prefill_ms_per_token": 0.01, "prefill_base_ms": 1.0, "decode_ms_per_token": 100.0}


def sim_model(name: str, latency: dict[str, float], **more: object) -> dict[str, object]:
    """A model's configuration; `latency` are the simulator's times."""
    sim = {"total_blocks": 4096, "default_max_tokens": 8, **latency}
    return {"name": name, "engine": "sim", "cpus_per_replica": 0, "sim": sim, **more}


@dataclass(frozen=True, slots=True)
class App:
    """A running application: its address and, for tests, its replicas."""

    name: str
    url: str

    def replicas(self, model: str) -> serve.handle.DeploymentHandle:
        return serve.get_deployment_handle(f"llm-{model}", self.name)

    def unfinished(self, model: str) -> int:
        """Requests inside the engines of all replicas."""
        counts = self.replicas(model).broadcast("num_unfinished").results(timeout_s=10)
        return sum(counts)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[None]:
    """Local and shut off: no dashboard, own folder, address of this machine only."""
    folder = Path(tempfile.mkdtemp(prefix="wp-ray-", dir="/tmp"))
    ray.init(
        address="local",
        num_cpus=8,
        include_dashboard=False,
        namespace="serve",
        log_to_driver=False,
        _temp_dir=str(folder),
        _node_ip_address="127.0.0.1",
    )
    yield
    ray.shutdown()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def serve_port(ray_cluster: None) -> Iterator[int]:
    port = free_port()
    serve.start(http_options={"host": "127.0.0.1", "port": port}, proxy_location="HeadOnly")
    yield port
    serve.shutdown()


def _faulty_server() -> type[LLMServer]:
    """A replica that tests can break. Made in a function, so that it is pickled by value."""

    class FaultyServer(LLMServer):
        async def inject(self, fault: SimFault) -> None:
            (await self._running()).inject(fault)  # type: ignore[attr-defined]

        async def pid(self) -> int:
            return os.getpid()

    return FaultyServer


@pytest.fixture(scope="session")
def deploy(serve_port: int) -> Callable[..., App]:
    """Brings up an application of the given configuration under its own path."""
    server = _faulty_server()

    def bring_up(name: str, *, blocking: bool = True, **config: object) -> App:
        args = AppConfig.model_validate(config)
        replicas = {
            model.name: serve.deployment(
                **deployment_options(model),
                max_queued_requests=args.ingress.max_queued_requests,
            )(server).bind(model.model_dump())
            for model in args.models
        }
        target = serve.RunTarget(build_ingress(args, replicas), name=name, route_prefix=f"/{name}")
        serve.run_many([target], wait_for_applications_running=blocking)
        return App(name, f"http://127.0.0.1:{serve_port}/{name}")

    return bring_up


@pytest.fixture(scope="session")
def app(deploy: Callable[..., App]) -> App:
    """Three simulated models: `fast` (2 replicas), `slow` and `tight` (1, two at a time)."""
    return deploy(
        "open",
        models=[
            sim_model("fast", FAST, replicas=2),
            sim_model("slow", SLOW),
            sim_model("tight", SLOW, max_ongoing_requests=2),
        ],
        ingress={
            "cpus_per_replica": 0,
            "max_queued_requests": 4,
            "retry_after_s": 2,
            "max_body_bytes": 4 * 1024 * 1024,
            "first_token_timeout_s": 60,
        },
    )


@pytest.fixture
def client(app: App) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=app.url, timeout=30) as client:
        yield client
