"""A whole application for a benchmark: `warmpath serve` in a process and a Ray of its own."""

import contextlib
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
import yaml
from ray import serve
from ray.serve.context import _set_global_client
from ray.serve.schema import ServeDeploySchema

from router.core.store_access import LoadLine
from router.core.types import ReplicaId
from serve_app.bench.client_priority import served_first
from serve_app.observe.decision_headers import alias

APPLICATION = "bench"
START_TIMEOUT_S = 600.0
RESTART_TIMEOUT_S = 300.0
POLL_S = 0.25
STOP_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class LiveApplication:
    """One model's application that runs, and the ways in which a benchmark interferes with it."""

    url: str
    model: str
    config: dict[str, Any]

    def tune(self, user_config: dict[str, object]) -> None:
        """What `serve deploy` of another `user_config` does; returns when it is in force."""
        from ray.serve.context import _get_global_client

        client = _get_global_client()
        client.deploy_apps(ServeDeploySchema.model_validate(_tuned(self.config, user_config)))
        time.sleep(POLL_S)  # the status is that of before until the controller's next round
        wait_until(self.is_running, START_TIMEOUT_S)

    def reset_caches(self) -> None:
        """Every replica's cache is empty afterwards. Only while nothing runs."""
        wait_until(lambda: all(self._on_each("reset_prefix_cache")), START_TIMEOUT_S)

    def cache_counters(self) -> list[dict[str, int]]:
        """Of each replica, what became of its engine's KV events."""
        return self._on_each("cache_counters")

    def metadata(self) -> list[dict[str, Any]]:
        """Of each replica, what it says to routers."""
        return self._on_each("record_replica_metadata")

    def load_lines(self) -> list[LoadLine | None]:
        """Of each replica, what it has measured of loads from its KV store."""
        return self._on_each("load_line")

    def kill_replica(self, shown: str | None = None) -> None:
        """Kills the process of one replica, of the one that answers show under that name, with
        signal 9; returns when another, cold, has taken its place."""
        names = self._replica_names()
        victim = next(name for name in names if shown in (None, _shown(name)))
        actor = ray.get_actor(victim, namespace="serve")
        os.kill(ray.get(actor.__ray_call__.remote(lambda _: os.getpid())), signal.SIGKILL)
        wait_until(lambda: self._is_replaced(victim, len(names)), RESTART_TIMEOUT_S)
        wait_until(self.is_running, RESTART_TIMEOUT_S)

    def _is_replaced(self, victim: str, count: int) -> bool:
        names = self._replica_names()
        return victim not in names and len(names) == count and self._answers() == count

    def _answers(self) -> int:
        try:
            return len(self._on_each("num_unfinished"))
        except ray.exceptions.RayError:  # the dead one is still known
            return 0

    def _on_each(self, method: str) -> list[Any]:
        handle = serve.get_deployment_handle(f"llm-{self.model}", APPLICATION)
        results: list[Any] = handle.broadcast(method).results()
        return results

    def _replica_names(self) -> list[str]:
        actors = ray.util.list_named_actors(all_namespaces=True)
        prefix = f"SERVE_REPLICA::{APPLICATION}#llm-{self.model}#"
        return sorted(actor["name"] for actor in actors if actor["name"].startswith(prefix))

    def is_running(self) -> bool:
        application = serve.status().applications.get(APPLICATION)
        if application is None or application.status != "RUNNING":
            return False
        deployments = application.deployments.values()
        return all(deployment.status == "HEALTHY" for deployment in deployments)


@contextlib.contextmanager
def live_application(
    folder: Path, port: int, args: dict[str, Any], user_config: dict[str, object]
) -> Iterator[LiveApplication]:
    """Serves on `port` of this machine, its own ports from `port` + 1 to + 99; ends with the block.

    What it writes is in `folder`, whose path must be short. Raises `RuntimeError` where it does not
    come up.
    """
    config = _config(port, args)
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(_tuned(config, user_config)))
    os.environ |= _environment(folder, port)
    with _running([sys.executable, "-m", "serve_app.cli", "serve", str(path)], folder) as process:
        url = f"http://127.0.0.1:{port}"
        wait_until(lambda: _is_up(process, url, folder), START_TIMEOUT_S)
        address = _cluster_address(folder)
        ray.init(address=address, namespace="serve", log_to_driver=False, logging_level="WARNING")
        try:
            live = LiveApplication(url, args["models"][0]["name"], config)
            wait_until(live.is_running, START_TIMEOUT_S)
            with served_first():
                yield live
        finally:
            _set_global_client(None)  # Serve would take the next cluster for this one
            ray.shutdown()


def wait_until(is_so: Any, timeout_s: float) -> None:
    """Raises `TimeoutError`."""
    deadline = time.monotonic() + timeout_s
    while not is_so():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not so after {timeout_s:g} s")
        time.sleep(POLL_S)


def _shown(actor_name: str) -> str:
    return alias(ReplicaId(actor_name.rsplit("#", 1)[-1]))


def _config(port: int, args: dict[str, Any]) -> dict[str, Any]:
    application = {
        "name": APPLICATION,
        "route_prefix": "/",
        "import_path": "serve_app.app:build",
        "logging_config": {"enable_access_log": False},
        "args": args,
    }
    return {
        "proxy_location": "HeadOnly",
        "http_options": {"host": "127.0.0.1", "port": port},
        "applications": [application],
    }


def _tuned(config: dict[str, Any], user_config: dict[str, object]) -> dict[str, Any]:
    (application,) = config["applications"]
    deployments = [{"name": "Ingress", "user_config": user_config}]
    return config | {"applications": [application | {"deployments": deployments}]}


def _environment(folder: Path, port: int) -> dict[str, str]:
    ports = {
        "RAY_SERVE_HAPROXY_STATS_PORT": port + 1,
        "RAY_SERVE_HAPROXY_METRICS_PORT": port + 2,
        "RAY_SERVE_FALLBACK_PROXY_HTTP_PORT": port + 3,
        "RAY_SERVE_DIRECT_INGRESS_MIN_HTTP_PORT": port + 10,
        "RAY_SERVE_DIRECT_INGRESS_MAX_HTTP_PORT": port + 99,
    }
    return {name: str(value) for name, value in ports.items()} | {
        "RAY_TMPDIR": str(folder),
        "RAY_AUTH_MODE": "disabled",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    }


def _cluster_address(folder: Path) -> str:
    """Of the cluster with this folder, as several may run here: Ray's own search takes any."""
    (port_file,) = folder.glob("ray/session_latest/gcs_server_port_*")
    return f"{ray.util.get_node_ip_address()}:{port_file.read_text()}"


def _is_up(process: "subprocess.Popen[bytes]", url: str, folder: Path) -> bool:
    if process.poll() is not None:
        raise RuntimeError(f"the application ended; see {folder / 'serve.log'}")
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=5):
            return True
    except (urllib.error.URLError, OSError):
        return False


@contextlib.contextmanager
def _running(command: list[str], folder: Path) -> Iterator["subprocess.Popen[bytes]"]:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # else the child would ignore it
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that it is told to stop
    with (folder / "serve.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(STOP_TIMEOUT_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
