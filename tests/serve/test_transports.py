"""Decisions are followed and settled however Serve carries a request: `warmpath serve` with its
proxies and transports. Actor calls behind the Python proxy are what all other tests here use.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import ray
import yaml

from tests.serve.cached_app import BLOCK_SIZE, PATIENT, Reply, completion, prompt, until
from tests.serve.conftest import free_port
from tests.serve.sim_app import FAST, sim_model

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(400)]

START_LIMIT_S = 240
BLOCKS = 6
PRICES = {"prefill_ms_per_token": 1.0, "prefill_base_ms": 0.1}
"""So dear that a booking which is about to be released outweighs no block."""
LEASE_S = 30.0
"""After that a booking would be gone even if nobody had settled it."""
STATS = """
import msgspec, ray, sys
from router.serve.generations import find_index

ray.init(address=sys.argv[1], namespace="serve", log_to_driver=False, logging_level="ERROR")
stats = msgspec.msgpack.decode(ray.get(find_index("app", "m").stats.remote()))
print(msgspec.json.encode(stats).decode())
"""


@dataclass(frozen=True, slots=True)
class Server:
    """One running `warmpath serve` in a Ray of its own, below `folder`."""

    url: str
    folder: Path
    environment: dict[str, str]

    def index_stats(self) -> dict[str, Any]:
        (port,) = self.folder.glob("ray/session_latest/gcs_server_port_*")
        address = f"{ray.util.get_node_ip_address()}:{port.read_text()}"
        done = subprocess.run(
            [sys.executable, "-c", STATS, address],
            env=self.environment,
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        stats: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return stats


@pytest.fixture(
    scope="module",
    params=[("1", "1"), ("0", "1")],
    ids=["haproxy-grpc", "python-grpc"],
)
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    has_haproxy, has_grpc = request.param
    with tempfile.TemporaryDirectory(prefix="wp-", dir="/tmp", ignore_cleanup_errors=True) as name:
        folder, port = Path(name), free_port()
        environment = environment_of(folder, has_haproxy, has_grpc)
        path = folder / "config.yaml"
        path.write_text(yaml.safe_dump(config(port)))
        with (folder / "log").open("wb") as log:
            command = [sys.executable, "-m", "serve_app.cli", "serve", str(path)]
            process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        try:
            server = Server(f"http://127.0.0.1:{port}", folder, environment)
            until(lambda: is_ready(process, folder / "log"), START_LIMIT_S)
            yield server
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(120)


def environment_of(folder: Path, has_haproxy: str, has_grpc: str) -> dict[str, str]:
    ports = ("HAPROXY_STATS", "HAPROXY_METRICS", "FALLBACK_PROXY_HTTP")
    return os.environ | {
        "RAY_SERVE_ENABLE_HA_PROXY": has_haproxy,
        "RAY_SERVE_THROUGHPUT_OPTIMIZED": has_grpc,
        "RAY_SERVE_USE_GRPC_BY_DEFAULT": has_grpc,
        "RAY_TMPDIR": str(folder),
        "RAY_AUTH_MODE": "disabled",
        **{f"RAY_SERVE_{each}_PORT": str(free_port()) for each in ports},
    }


def config(port: int) -> dict[str, Any]:
    args = {
        "models": [sim_model("m", FAST, replicas=3)],
        "ingress": {"cpus_per_replica": 0, "replicas": 2},
    }
    application = {
        "name": "app",
        "import_path": "serve_app.app:build",
        "args": args,
        "deployments": [{"name": "Ingress", "user_config": PATIENT | {"parameters": PRICES}}],
    }
    options = {"host": "127.0.0.1", "port": port}
    return {"proxy_location": "HeadOnly", "http_options": options, "applications": [application]}


def is_ready(process: "subprocess.Popen[bytes]", log: Path) -> bool:
    text = log.read_text(errors="replace")
    assert process.poll() is None, text[-3000:]
    return "warmpath: ready after" in text


@pytest.fixture
def web(server: Server) -> Iterator[httpx.Client]:
    limits = httpx.Limits(max_connections=50)
    with httpx.Client(base_url=server.url, timeout=60, limits=limits) as client:
        yield client


def streamed(client: httpx.Client, seed: int) -> Reply:
    """The last event but one has the usage."""
    more = {"stream": True, "stream_options": {"include_usage": True}}
    body = {"model": "m", "prompt": prompt(seed, BLOCKS), "max_tokens": 20} | more
    answer = client.post("/v1/completions", json=body)
    assert answer.status_code == 200, answer.text
    *events, end = [line for line in answer.text.splitlines() if line]
    usage = json.loads(events[-1].removeprefix("data: "))["usage"]
    assert end == "data: [DONE]" and usage["completion_tokens"] == 20
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    headers = answer.headers
    forecast = int(headers["x-warmpath-forecast-tokens"])
    return Reply(200, headers["x-warmpath-replica"], forecast, cached, headers["x-warmpath-reason"])


def test_decisions_are_followed_and_settled(server: Server, web: httpx.Client) -> None:
    firsts = [completion(web, prompt(seed, BLOCKS)) for seed in range(4)]
    assert {first.status for first in firsts} == {200}
    for seed, first in enumerate(firsts):
        until(lambda seed=seed: completion(web, prompt(seed, BLOCKS)).reason == "kv_overlap")
        again = [streamed(web, seed) for _ in range(6)]
        assert {each.replica for each in again} == {first.replica}
        assert {each.forecast_tokens for each in again} == {BLOCKS * BLOCK_SIZE}
        assert {each.cached_tokens for each in again} == {BLOCKS * BLOCK_SIZE}
    assert len({first.replica for first in firsts}) > 1
    both = completion(web, [prompt(0, BLOCKS), prompt(90, 3)], n=2)
    assert both.forecast_tokens == both.cached_tokens == BLOCKS * BLOCK_SIZE

    until(lambda: server.index_stats()["bookings"] == 0)
    assert server.index_stats()["ledger"]["settled"] >= 29


def test_clients_that_leave_free_engine_and_booking(server: Server, web: httpx.Client) -> None:
    def leave(seed: int) -> None:
        body = {"model": "m", "prompt": prompt(seed, 2), "max_tokens": 4000, "stream": True}
        with web.stream("POST", "/v1/completions", json=body) as answer:
            next(answer.iter_lines())

    swept = server.index_stats()["ledger"]["swept"]
    with ThreadPoolExecutor(10) as pool:
        list(pool.map(leave, range(100, 110)))
    until(lambda: server.index_stats()["bookings"] == 0, LEASE_S / 2)
    assert server.index_stats()["ledger"]["swept"] == swept
