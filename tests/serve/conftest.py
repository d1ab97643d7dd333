"""One local Ray cluster and one application of simulated models for all tests here."""

import os
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

os.environ["RAY_AUTH_MODE"] = "disabled"
os.environ.setdefault("RAY_SERVE_LOG_TO_STDERR", "0")

import httpx
import pytest
import ray
from ray import serve

from replicas.deployment import deployment_options
from router.configuration import AppConfig, SimConfig
from serve_app.app import build_ingress
from tests.serve import faulty_server
from tests.serve.context_calls import QUOTA, SECRET, Caller, key_lines
from tests.serve.faulty_server import FaultyServer
from tests.serve.sim_app import FAST, SLOW, App, sim_model


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


# Replicas cannot import the tests.
ray.cloudpickle.register_pickle_by_value(faulty_server)


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


@pytest.fixture(scope="session")
def deploy(serve_port: int, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., App]:
    """Brings up an application of the given configuration under its own path."""

    def bring_up(name: str, *, blocking: bool = True, **config: object) -> App:
        args = AppConfig.model_validate(config)
        folder = tmp_path_factory.mktemp(name)
        replicas = {
            model.name: serve.deployment(
                **deployment_options(model),
                max_queued_requests=args.ingress.max_queued_requests,
            )(FaultyServer).bind(model.model_dump(), str(folder))
            for model in args.models
        }
        target = serve.RunTarget(build_ingress(args, replicas), name=name, route_prefix=f"/{name}")
        serve.run_many([target], wait_for_applications_running=blocking)
        return App(name, f"http://127.0.0.1:{serve_port}/{name}", folder)

    return bring_up


@pytest.fixture(scope="session")
def app(deploy: Callable[..., App]) -> App:
    """Simulated models: `fast` has 2 replicas, `tight` two slots, `long` a context of 2 M tokens,
    and `brittle` is for tests that break it.
    """
    return deploy(
        "open",
        models=[
            sim_model("fast", FAST, replicas=2),
            sim_model("slow", SLOW),
            sim_model("tight", SLOW, max_ongoing_requests=2),
            sim_model("brittle", SLOW),
            sim_model("long", FAST | {"block_size": 1024, "max_model_len": 2_000_000}),
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


@pytest.fixture(scope="session")
def contexts_app(
    deploy: Callable[..., App], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[App]:
    """Two ingresses before `fast` (two replicas) and `slow`; two tenants, ann and bob."""
    folder = tmp_path_factory.mktemp("contexts")
    (folder / "keys").write_text(key_lines())
    secret = folder / "secret"
    secret.touch(mode=0o600)
    secret.write_text(SECRET)
    yield deploy(
        "contexts",
        models=[sim_model("fast", FAST, replicas=2), sim_model("slow", SLOW)],
        ingress={"cpus_per_replica": 0, "replicas": 2},
        auth={"keys_file": str(folder / "keys"), "secret_file": str(secret)},
        contexts={
            "journal": str(folder / "contexts.db"),
            "lease_s": 2.0,
            "max_contexts_per_tenant": QUOTA,
        },
    )


@pytest.fixture(scope="session")
def contexts_http(contexts_app: App) -> Iterator[httpx.Client]:
    limits = httpx.Limits(max_connections=100)
    with httpx.Client(base_url=contexts_app.url, timeout=60, limits=limits) as client:
        yield client


@pytest.fixture
def ann(contexts_http: httpx.Client) -> Caller:
    return Caller(contexts_http, "fast", "ann")


@pytest.fixture
def bob(contexts_http: httpx.Client) -> Caller:
    return Caller(contexts_http, "fast", "bob")


@pytest.fixture
def max_model_len() -> int:
    return SimConfig().max_model_len


@pytest.fixture
def slow(contexts_http: httpx.Client) -> Caller:
    """Its tokens come 100 ms apart."""
    return Caller(contexts_http, "slow", "ann")
