"""An application of simulated models, as tests see it."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ray import serve

FAST = {"prefill_ms_per_token": 0.01, "prefill_base_ms": 1.0, "decode_ms_per_token": 1.0}
SLOW = {"prefill_ms_per_token": 0.01, "prefill_base_ms": 1.0, "decode_ms_per_token": 100.0}


def sim_model(name: str, settings: dict[str, float], **more: object) -> dict[str, object]:
    """A model's configuration; `settings` are the simulator's."""
    sim = {"total_blocks": 4096, "default_max_tokens": 8, **settings}
    return {"name": name, "engine": "sim", "cpus_per_replica": 0, "sim": sim, **more}


@dataclass(frozen=True, slots=True)
class Report:
    """What one living replica last wrote of itself."""

    served: int
    unfinished: int


@dataclass(frozen=True, slots=True)
class App:
    """A running application: its address and, for tests, its replicas.

    Replicas report into `folder`, because a call to a full one would wait for a slot.
    """

    name: str
    url: str
    folder: Path

    def replicas(self, model: str) -> serve.handle.DeploymentHandle:
        return serve.get_deployment_handle(f"llm-{model}", self.name)

    def unfinished(self, model: str) -> int:
        """Requests inside the engines of all replicas, not older than 50 ms."""
        return sum(report.unfinished for report in self._reports(model))

    def served(self, model: str) -> list[int]:
        """Requests that each replica was given since it started."""
        return [report.served for report in self._reports(model)]

    def _reports(self, model: str) -> Iterator[Report]:
        for path in self.folder.glob(f"*.{model}"):
            if _is_alive(int(path.stem)):
                yield Report(*map(int, path.read_text().split()))


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
