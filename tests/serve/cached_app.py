"""Applications deployed like `serve deploy` does it, watched from outside."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import httpx
import msgspec
import ray
from ray.actor import ActorHandle
from ray.serve.context import _get_global_client
from ray.serve.schema import ServeDeploySchema

from router.serve.generations import find_index

BLOCK_SIZE = 32
PATIENT: dict[str, Any] = {"expose_decisions": True, "index_deadline_ms": 5000}
"""A test machine may be busy: only what a test breaks on purpose is to miss a deadline."""


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer, with its decision as the headers tell it."""

    status: int
    replica: str
    forecast_tokens: int
    cached_tokens: int
    reason: str


@dataclass(frozen=True, slots=True)
class CachedApp:
    """One application with one simulated model, `m`."""

    name: str
    url: str
    args: dict[str, Any]
    start_limit_s: float = 120

    def deploy(self, *, replicas: int | None = None, **user_config: object) -> None:
        """Waits until what is running is what was asked for. Another number restarts no replica."""
        deployments: list[dict[str, Any]] = [
            {"name": "Ingress", "user_config": PATIENT | user_config}
        ]
        if replicas is not None:
            deployments.append({"name": "llm-m", "num_replicas": replicas})
        application = {
            "name": self.name,
            "route_prefix": f"/{self.name}",
            "import_path": "serve_app.app:build",
            "args": self.args,
            "deployments": deployments,
        }
        schema = ServeDeploySchema.model_validate({"applications": [application]})
        _get_global_client().deploy_apps(schema)
        until(lambda: self._details()["status"] == "RUNNING", self.start_limit_s)

    def pids(self, deployment: str) -> set[int]:
        """Of the replicas that run."""
        replicas = self._details()["deployments"][deployment]["replicas"]
        return {replica["pid"] for replica in replicas if replica["state"] == "RUNNING"}

    def replica_id(self, deployment: str, pid: int) -> str:
        replicas = self._details()["deployments"][deployment]["replicas"]
        return next(str(each["replica_id"]) for each in replicas if each["pid"] == pid)

    def nodes(self, deployment: str) -> dict[str, str]:
        """The ids of the nodes that its replicas run on, by replica."""
        replicas = self._details()["deployments"][deployment]["replicas"]
        running = (replica for replica in replicas if replica["state"] == "RUNNING")
        return {replica["replica_id"]: replica["node_id"] for replica in running}

    def known_replicas(self) -> set[str]:
        """Those whose blocks are in the index."""
        asked = self.index().__ray_call__.remote(
            lambda actor: set(actor._service.index.blocks_by_replica())
        )
        known: set[str] = ray.get(asked, timeout=10)
        return known

    def index(self) -> ActorHandle:
        actor = find_index(self.name, "m")
        assert actor is not None
        return actor

    def stats(self) -> dict[str, Any]:
        stats: dict[str, Any] = msgspec.msgpack.decode(ray.get(self.index().stats.remote()))
        return stats

    def until_known(self, replicas: int) -> None:
        """The index knows all that so many replicas hold."""
        until(lambda: (self.stats()["candidates"], self.stats()["refilling"]) == (replicas, 0), 60)

    def until_applied(self) -> None:
        """No event has come for a while: renewals come once a second, and change no block."""
        blocks, since_s = -1, time.monotonic()
        while time.monotonic() - since_s < 0.4:
            now = self.stats()["index"]["blocks"]
            if now != blocks:
                blocks, since_s = now, time.monotonic()
            time.sleep(0.05)

    def _details(self) -> dict[str, Any]:
        details: dict[str, Any] = _get_global_client().get_serve_details()["applications"]
        return details[self.name]


def prompt(seed: int, blocks: int, extra_tokens: int = 5) -> list[int]:
    """Token ids that share no block with those of another seed."""
    return [1000 + seed, *([seed % 97] * (blocks * BLOCK_SIZE + extra_tokens - 1))]


def completion(client: httpx.Client, token_ids: object, **more: object) -> Reply:
    body = {"model": "m", "prompt": token_ids, "max_tokens": 1} | more
    return reply(client.post("/v1/completions", json=body))


def reply(answer: httpx.Response) -> Reply:
    if answer.status_code != 200:
        return Reply(answer.status_code, "", 0, 0, answer.text)
    usage = answer.json()["usage"]
    details = usage.get("prompt_tokens_details") or usage.get("input_tokens_details") or {}
    return Reply(
        200,
        answer.headers["x-warmpath-replica"],
        int(answer.headers["x-warmpath-forecast-tokens"]),
        details.get("cached_tokens") or 0,
        answer.headers["x-warmpath-reason"],
    )


def until(condition: Callable[[], bool], within_s: float = 10.0) -> None:
    deadline_s = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline_s, "it did not happen in time"
        time.sleep(0.1)


def pid_of(actor: ActorHandle) -> int:
    """Of the process that an actor lives in."""
    return int(ray.get(actor.__ray_call__.remote(lambda _: os.getpid()), timeout=10))
