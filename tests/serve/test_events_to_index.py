"""Replicas of a Serve application and the block index's actor: who holds what, whatever dies."""

import json
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
import ray
from ray import serve
from ray.serve.handle import DeploymentHandle

from replicas.deployment import deployment_options
from router.configuration import ModelConfig
from router.serve.generations import find_index, open_index, remove_index
from router.serve.index_settings import IndexSettings
from tests.contract.engine_client import fresh_prompt, make_request
from tests.serve import truthful_server
from tests.serve.sim_app import FAST, sim_model
from tests.serve.truthful_server import TruthfulServer, known_blocks

pytestmark = pytest.mark.ray

# Replicas cannot import the tests.
ray.cloudpickle.register_pickle_by_value(truthful_server)

SETTINGS = IndexSettings(max_replicas=8, max_blocks=100_000, stale_after_s=3.0, forget_after_s=6.0)
BLOCK_SIZE = 16
SIM = FAST | {"block_size": BLOCK_SIZE, "total_blocks": 300, "max_model_len": 4096}
NAME = "events"


@dataclass
class Application:
    """Two simulated replicas, what their engines hold, and what the index believes."""

    handle: DeploymentHandle
    folder: Path

    def load(self, requests: int) -> None:
        """More than the caches hold, over a few shared prefixes."""
        draw = random.Random(requests)
        systems = [fresh_prompt(4 * BLOCK_SIZE) for _ in range(6)]
        answers = [
            self.handle.generate.remote(
                make_request(draw.choice(systems) + fresh_prompt(draw.randrange(1, 300)))
            )
            for _ in range(requests)
        ]
        for answer in answers:
            for _ in answer:
                pass

    def engines(self) -> dict[str, set[int]]:
        """The blocks of each living replica's engine, by replica."""
        reports = [
            json.loads(path.read_text())
            for path in self.folder.glob("*.json")
            if _is_alive(int(path.stem))
        ]
        return {replica_id: set(blocks) for replica_id, blocks in reports}

    def pids(self) -> list[int]:
        return [pid for path in self.folder.glob("*.json") if _is_alive(pid := int(path.stem))]

    def indexed(self) -> dict[str, set[int]]:
        """What the index believes of each replica that it knows; nothing without an index."""
        actor = find_index(NAME, "m")
        if actor is None:
            return {}
        with suppress(ray.exceptions.RayError):
            known: dict[str, set[int]] = ray.get(actor.__ray_call__.remote(known_blocks), timeout=5)
            return known
        return {}

    def until_exact(self, replicas: int = 2) -> None:
        def is_exact() -> bool:
            engines = self.engines()
            return len(engines) == replicas and engines == self.indexed() == self.engines()

        until(is_exact)


def _is_alive(pid: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    return False


def until(condition: Callable[[], bool], limit_s: float = 60.0) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.1)


@pytest.fixture(scope="module")
def deployed(serve_port: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Application]:
    folder = tmp_path_factory.mktemp(NAME)
    model = ModelConfig.model_validate(sim_model("m", SIM, replicas=2))
    options = deployment_options(model)
    target = serve.deployment(**options)(TruthfulServer).bind(model.model_dump(), str(folder))
    handle = serve.run(target, name=NAME, route_prefix=None)
    yield Application(handle.options(stream=True), folder)
    serve.delete(NAME)
    remove_index(NAME, "m")


@pytest.fixture
def application(deployed: Application) -> Application:
    """In step with its index, and with something in every cache."""
    open_index(NAME, "m", SETTINGS)
    deployed.load(20)
    deployed.until_exact()
    return deployed


def test_after_load_with_eviction_the_index_holds_what_the_engines_hold(
    application: Application,
) -> None:
    application.load(80)
    application.until_exact()
    assert sum(map(len, application.engines().values())) > 200


def test_replicas_serve_without_an_index_and_tell_the_next_one_everything(
    application: Application,
) -> None:
    remove_index(NAME, "m")
    application.load(20)
    assert application.indexed() == {}
    open_index(NAME, "m", SETTINGS)
    application.until_exact()


def test_an_index_that_was_killed_is_filled_again(application: Application) -> None:
    actor = find_index(NAME, "m")
    assert actor is not None
    ray.kill(actor, no_restart=False)
    application.load(20)
    application.until_exact()


def test_an_index_that_stood_still_catches_up(application: Application) -> None:
    actor = find_index(NAME, "m")
    assert actor is not None
    pid = ray.get(actor.__ray_call__.remote(lambda _: os.getpid()), timeout=10)
    os.kill(pid, signal.SIGSTOP)
    try:
        application.load(20)
        time.sleep(2)
    finally:
        os.kill(pid, signal.SIGCONT)
    application.until_exact()


def test_a_killed_replica_leaves_the_index_and_its_successor_enters_it_empty(
    application: Application,
) -> None:
    before = set(application.engines())
    os.kill(application.pids()[0], signal.SIGKILL)
    until(lambda: len(application.engines()) == 2 and set(application.engines()) != before)
    application.until_exact()
    (newcomer,) = set(application.engines()) - before
    assert application.indexed()[newcomer] == set()
    application.load(20)
    application.until_exact()


def test_a_reset_reaches_the_index_while_the_engines_are_idle(application: Application) -> None:
    reset = application.handle.options(stream=False).reset_prefix_cache
    for _ in range(12):  # whichever replica it reaches
        assert reset.remote().result()
    until(lambda: not any(application.engines().values()))
    application.until_exact()
    application.load(5)
    application.until_exact()
