"""The processes of a live application: which there are, their memory, and one that is killed."""

import os
import signal
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import ray

from replicas.kv.store.settings import family_prefix
from router.serve.context_generations import find_contexts
from router.serve.generations import find_index
from serve_app.bench.live import APPLICATION

_CALL_LIMIT_S = 5.0


class Processes:
    """Of one application with one model, in the cluster that this process has joined. All blocks.

    Only processes of that cluster's named actors are ever found.
    """

    def __init__(self, model: str) -> None:
        self._model = model
        self._prefixes = {
            f"SERVE_REPLICA::{APPLICATION}#Ingress#": "ingress",
            f"SERVE_REPLICA::{APPLICATION}#llm-{model}#": "replica",
            f"block-index/{APPLICATION}/": "index",
            f"contexts/{APPLICATION}/": "contexts",
            family_prefix(APPLICATION): "store",
        }
        self._pids: dict[tuple[str, str], int] = {}

    def pids(self) -> dict[str, list[int]]:
        """By kind, of those that live and answer."""
        found = defaultdict[str, list[int]](list)
        for kind, name, namespace in self._named():
            pid = self._pid(name, namespace)
            if pid is not None:
                found[kind].append(pid)
        return found

    def kill(self, kind: str) -> bool:
        """Signal 9 to the first process of that kind; false where there is none."""
        self._pids.clear()  # never a pid that is another process's by now
        pids = self.pids().get(kind)
        if pids:
            os.kill(pids[0], signal.SIGKILL)
        return bool(pids)

    def memory_mib(self) -> dict[str, list[tuple[int, float]]]:
        """Pid and private memory of each process, by kind."""
        return {
            kind: [(pid, mib) for pid in pids if (mib := private_mib(pid)) is not None]
            for kind, pids in self.pids().items()
        }

    def bookings(self) -> int:
        return int(_stats(find_index(APPLICATION, self._model))["bookings"])

    def open_turns(self) -> int:
        return int(_stats(find_contexts(APPLICATION))["busy"])

    def _named(self) -> Iterator[tuple[str, str, str]]:
        for actor in ray.util.list_named_actors(all_namespaces=True):
            for prefix, kind in self._prefixes.items():
                if actor["name"].startswith(prefix):
                    yield kind, actor["name"], actor["namespace"]

    def _pid(self, name: str, namespace: str) -> int | None:
        """A restarted actor keeps its name, so what is remembered must still be alive."""
        pid = self._pids.get((name, namespace))
        if pid is None or private_mib(pid) is None:
            try:
                actor = ray.get_actor(name, namespace=namespace)
                asked = actor.__ray_call__.remote(lambda _: os.getpid())
                pid = int(ray.get(asked, timeout=_CALL_LIMIT_S))
            except (ray.exceptions.RayError, ValueError):
                return None
            self._pids[name, namespace] = pid
        return pid


def private_mib(pid: int) -> float | None:
    """What no other process shares, so without objects of Ray's store; None: it is gone."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return None
    kib = [int(line.split()[1]) for line in lines if line.startswith("RssAnon:")]
    return kib[0] / 1024 if kib else None


def _stats(actor: Any) -> dict[str, Any]:
    """Raises Ray's errors, or `LookupError` where there is no such actor."""
    if actor is None:
        raise LookupError("there is no such actor")
    stats: dict[str, Any] = msgspec.msgpack.decode(
        ray.get(actor.stats.remote(), timeout=_CALL_LIMIT_S)
    )
    return stats
