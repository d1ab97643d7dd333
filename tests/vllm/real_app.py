"""The whole application with two real replicas, seen from outside: HTTP, access log, engines."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from types import MappingProxyType
from typing import Any

import httpx
import pytest
import ray
import zmq
from ray import serve

from serve_app.auth import SECRET_VARIABLE
from tests.serve.cached_app import CachedApp, until
from tests.serve.truthful_server import known_blocks
from tests.vllm import witness_scheduler
from tests.vllm.mixed_requests import BLOCK_SIZE, Ask

REPLICAS = 2
BLOCKS_PER_REPLICA = 200
LLM = "llm-m"
START_LIMIT_S = 400
TENANTS = ("ann", "bob")
_KEYS = "WARMPATH_TEST_KEYS"
_ROOT = Path(__file__).parents[2]
NOTHING: Mapping[str, Any] = MappingProxyType({})

Blocks = dict[str, set[int]]
"""Router hashes by replica."""


@dataclass(frozen=True, slots=True)
class Served:
    """One answer with its line in the access log; `usage_cached_tokens` where it says them."""

    ask: Ask
    line: dict[str, Any]
    answer: dict[str, Any]
    usage_cached_tokens: int | None
    forecast_tokens: int

    @property
    def differences(self) -> int:
        """Engine requests whose figure was another than the forecast."""
        pairs = zip(self.line["forecast_blocks"], self.line["cached_tokens"], strict=True)
        return sum(blocks * BLOCK_SIZE != tokens for blocks, tokens in pairs)

    @property
    def is_told_alike(self) -> bool:
        """The client reads of its header and its usage what the log says, once for each prompt."""
        choices = self.line["choices"]
        forecast = sum(self.line["forecast_blocks"][::choices]) * BLOCK_SIZE
        cached = sum(self.line["cached_tokens"][::choices])
        return self.forecast_tokens == forecast and self.usage_cached_tokens in (None, cached)

    def __str__(self) -> str:
        shown = (
            "replica",
            "reason",
            "overlap_blocks",
            "forecast_blocks",
            "cached_tokens",
            "causes",
        )
        figures = {name: self.line[name] for name in shown}
        return f"{self.ask.kind} {figures} usage {self.usage_cached_tokens}"


class AccessLog:
    """The lines of all ingresses by the id that the client gave its request. For any thread."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read_bytes: dict[Path, int] = {}
        self._lines: dict[str, dict[str, Any]] = {}
        self._lock = Lock()

    def line(self, http_request_id: str) -> dict[str, Any]:
        until(lambda: self._has(http_request_id))
        return self._lines[http_request_id]

    def _has(self, http_request_id: str) -> bool:
        with self._lock:
            for path in self._folder.glob("session_latest/logs/serve/replica_*Ingress*.log"):
                self._follow(path)
        return http_request_id in self._lines

    def _follow(self, path: Path) -> None:
        with path.open("rb") as log:
            log.seek(self._read_bytes.get(path, 0))
            for line in log:
                if not line.endswith(b"\n"):
                    return
                self._read_bytes[path] = log.tell()
                if (start := line.find(b'{"event":"request"')) >= 0:
                    fields = json.loads(line[start:])
                    self._lines[fields.get("http_request_id", "")] = fields


@dataclass(frozen=True, slots=True, kw_only=True)
class RealApp(CachedApp):
    """`folder` holds Ray's session and, below `witnesses`, the engines' sockets."""

    folder: Path
    log: AccessLog

    def serve(self, client: httpx.Client, ask: Ask, http_request_id: str) -> Served:
        headers = bearer(ask.tenant) | {"X-Request-Id": http_request_id}
        answer = client.post(ask.path, json=ask.body, headers=headers)
        assert answer.status_code == 200, answer.text
        document = _last_event(answer.text) if ask.is_stream else answer.json()
        usage = document["usage"]
        details = usage.get("prompt_tokens_details") or usage.get("input_tokens_details") or {}
        forecast = int(answer.headers["x-warmpath-forecast-tokens"])
        line = self.log.line(http_request_id)
        return Served(ask, line, document, details.get("cached_tokens"), forecast)

    def engines(self) -> Blocks:
        """What each engine that runs says itself."""
        return self._asked(self._running())

    def indexed(self) -> Blocks:
        """What the index believes; nothing where it does not answer."""
        with suppress(ray.exceptions.RayError, AssertionError):
            asked = self.index().__ray_call__.remote(known_blocks)
            known: Blocks = ray.get(asked, timeout=5)
            return known
        return {}

    def is_exact(self) -> bool:
        with suppress(zmq.Again):
            running = self._running()
            engines = self._asked(running)
            return len(engines) == REPLICAS and engines == self.indexed() == self._asked(running)
        return False

    def until_exact(self, within_s: float = 30) -> None:
        until(self.is_exact, within_s)

    def withhold(self) -> None:
        """Each engine keeps its next stored event to itself."""
        self._asked(self._running(), witness_scheduler.WITHHOLD)

    def tell(self) -> None:
        """Every engine tells every event."""
        self._asked(self._running(), witness_scheduler.TELL)

    def reset(self) -> None:
        """All engines, while they are idle; Serve says not which replica a call reaches."""
        handle = serve.get_deployment_handle(LLM, self.name)
        until(
            lambda: handle.reset_prefix_cache.remote().result() and not any(self.engines().values())
        )

    def _running(self) -> list[dict[str, Any]]:
        replicas = self._details()["deployments"][LLM]["replicas"]
        return [replica for replica in replicas if replica["state"] == "RUNNING"]

    def _asked(
        self, replicas: list[dict[str, Any]], question: bytes = witness_scheduler.BLOCKS
    ) -> Blocks:
        sockets = self.folder / "witnesses"
        return {
            replica["replica_id"]: witness_scheduler.ask(sockets, replica["pid"], question)
            for replica in replicas
        }


def bearer(tenant: str) -> dict[str, str]:
    return {"Authorization": f"Bearer key-of-{tenant}"}


@contextmanager
def running_app(
    folder: Path, port: int, model: Mapping[str, Any] = NOTHING, **more: Any
) -> Iterator[RealApp]:
    """Starts everything, which takes about a minute, and ends it. `more` joins the arguments."""
    with environment(folder):
        ray.init(
            address="local",
            num_cpus=8,
            include_dashboard=False,
            namespace="serve",
            log_to_driver=False,
            _temp_dir=str(folder),
            _node_ip_address="127.0.0.1",
        )
        try:
            app = serving(folder, port, model, **more)
            app.deploy()
            app.until_known(REPLICAS)
            yield app
            serve.shutdown()
        finally:
            ray.shutdown()


@contextmanager
def environment(folder: Path) -> Iterator[None]:
    """What the processes of a cluster have to find in theirs."""
    keys = (f"{name}:{hashlib.sha256(f'key-of-{name}'.encode()).hexdigest()}" for name in TENANTS)
    (folder / "witnesses").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_MODE", "disabled")
        patch.setenv("PYTHONPATH", str(_ROOT))
        patch.setenv(witness_scheduler.FOLDER, str(folder / "witnesses"))
        patch.setenv(_KEYS, "\n".join(keys))
        patch.setenv(SECRET_VARIABLE, "a-secret-of-sixteen-and-more-bytes")
        yield


def serving(folder: Path, port: int, model: Mapping[str, Any] = NOTHING, **more: Any) -> RealApp:
    """Starts Serve in the cluster of this process; the application is still to be deployed."""
    serve.start(http_options={"host": "127.0.0.1", "port": port}, proxy_location="HeadOnly")
    url, args = f"http://127.0.0.1:{port}/app", _args(model) | more
    return RealApp("app", url, args, START_LIMIT_S, folder=folder, log=AccessLog(folder))


def _args(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Few running requests for each engine, so that twenty streams leave some waiting."""
    engine_args = {
        "block_size": BLOCK_SIZE,
        "num_gpu_blocks_override": BLOCKS_PER_REPLICA,
        "max_model_len": 2048,
        "max_num_seqs": 6,
        "scheduler_cls": "tests.vllm.witness_scheduler.WitnessScheduler",
    }
    model = {"name": "m", "replicas": REPLICAS, "cpus_per_replica": 0, "engine_args": engine_args}
    model |= settings
    return {
        "models": [model],
        "ingress": {"cpus_per_replica": 0, "replicas": 2, "render_workers": 1},
        "auth": {"keys_env": _KEYS},
    }


def _last_event(text: str) -> dict[str, Any]:
    """The usage comes last but for the end mark."""
    events = [
        line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")
    ]
    assert events[-1] == "[DONE]"
    document: dict[str, Any] = json.loads(events[-2])
    return document
