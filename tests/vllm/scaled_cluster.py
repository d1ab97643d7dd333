"""A Ray cluster on this machine whose worker nodes come and go as Ray's own autoscaler wants it."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import ray
from ray.serve.context import _set_global_client

from tests.serve.cached_app import until

HEAD_CPUS, WORKER_CPUS = 1, 2
MAX_WORKERS = 2
IDLE_TIMEOUT_S = 3.0
"""A worker node on which nothing has lived for so long is removed."""
OBJECT_STORE_BYTES = 2**28
START_LIMIT_S = 60
STOP_LIMIT_S = 20


@dataclass(frozen=True, slots=True)
class ScaledCluster:
    """The cluster that this process has joined. Nodes are named by their ids."""

    def workers(self) -> set[str]:
        """The worker nodes that are there."""
        return {node["NodeID"] for node in ray.nodes() if node["Alive"]} - {self.head()}

    def head(self) -> str:
        (head,) = [node for node in ray.nodes() if "node:__internal_head__" in node["Resources"]]
        return str(head["NodeID"])


@contextmanager
def scaled_cluster(folder: Path) -> Iterator[ScaledCluster]:
    """A head node, and this process joined; at the end no process of it is left.

    `folder` gets everything that Ray writes; its path must be short.
    """
    address = f"{ray.util.get_node_ip_address()}:{free_port()}"
    settings = folder / "autoscaling.json"
    settings.write_text(json.dumps(_autoscaling(address)))
    with _started(folder, address, settings) as started:
        until(lambda: _joined(address, started), START_LIMIT_S)
        try:
            yield ScaledCluster()
        finally:
            _set_global_client(None)  # Serve would take the next cluster for this one
            ray.shutdown()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _autoscaling(address: str) -> dict[str, Any]:
    """All nodes have the address of this machine, so that they are told apart by their ids."""
    resources = {"CPU": WORKER_CPUS, "object_store_memory": OBJECT_STORE_BYTES}
    lists = ("setup_commands", "initialization_commands", "rsync_exclude", "rsync_filter")
    commands = ("head_setup", "worker_setup", "head_start_ray", "worker_start_ray")
    return {
        "cluster_name": "scaled",
        "max_workers": MAX_WORKERS,
        "idle_timeout_minutes": IDLE_TIMEOUT_S / 60,
        "upscaling_speed": MAX_WORKERS,
        "provider": {
            "type": "fake_multinode",
            "gcs_address": address,
            "use_node_id_as_ip": True,
            "disable_node_updaters": True,
            "disable_launch_config_check": True,
        },
        "auth": {},
        "docker": {},
        "head_node_type": "ray.head.default",
        "available_node_types": {
            "ray.head.default": {
                "resources": {"CPU": HEAD_CPUS},
                "node_config": {},
                "max_workers": 0,
            },
            "worker": {
                "resources": resources,
                "node_config": {},
                "min_workers": 0,
                "max_workers": MAX_WORKERS,
            },
        },
        "file_mounts": {},
        "file_mounts_sync_continuously": False,
        "cluster_synced_files": [],
        **{name: [] for name in lists},
        **{f"{name}_commands": [] for name in commands},
    }


@contextmanager
def _started(folder: Path, address: str, settings: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """In a session of its own, in which all nodes and what runs on them stay."""
    options = {
        "port": address.rpartition(":")[2],
        "ray-client-server-port": free_port(),
        "dashboard-agent-listen-port": 0,
        "min-worker-port": 0,
        "max-worker-port": 0,
        "num-cpus": HEAD_CPUS,
        "object-store-memory": OBJECT_STORE_BYTES,
        "include-dashboard": "false",
        "temp-dir": folder,
        "autoscaling-config": settings,
    }
    arguments = [f"--{name}={value}" for name, value in options.items()]
    ray_start = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block"]
    fake = {"RAY_FAKE_CLUSTER": "1", "AUTOSCALER_UPDATE_INTERVAL_S": "1"}
    with (folder / "start.log").open("wb") as log:
        process = subprocess.Popen(
            ray_start + arguments,
            env=os.environ | fake,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        until(lambda: not _killed(process.pid), STOP_LIMIT_S)
        process.wait()


def _joined(address: str, started: "subprocess.Popen[bytes]") -> bool:
    assert started.poll() is None, "the head node has ended"
    try:
        ray.init(address=address, namespace="serve", log_to_driver=False, logging_level="ERROR")
    except (ConnectionError, RuntimeError):
        return False
    return True


def _killed(session: int) -> list[int]:
    """What was left of a session: worker nodes outlive a head node, and others both."""
    found: list[int] = []
    for pid in psutil.pids():
        with suppress(ProcessLookupError, psutil.NoSuchProcess):
            if os.getsid(pid) == session and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                os.kill(pid, signal.SIGKILL)
                found.append(pid)
    return found
