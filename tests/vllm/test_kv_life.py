"""KV of contexts in the stores of a whole application: there while it is wanted, whoever dies."""

import os
import shutil
import signal
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import ray
from ray import serve
from ray.actor import ActorHandle

from replicas.kv.store.peers import store_names
from replicas.kv.store.wire import pack_origins, unpack_objects
from router.core.hashing import unpack_hashes
from router.core.types import StoreId
from router.serve.actor_family import NAMESPACE
from tests.serve.cached_app import pid_of, until
from tests.serve.context_calls import Caller
from tests.vllm.real_app import LLM, REPLICAS, RealApp, running_app

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(900)]

OBJECT_BLOCKS, BLOCK_SIZE = 4, 32
OBJECT_TOKENS = OBJECT_BLOCKS * BLOCK_SIZE
RELEASE_LIMIT_S = 60.0
"""What nobody claims any more is gone by then: the contract of contexts."""
END_LIMIT_S = 90.0


@pytest.fixture(scope="module")
def started() -> Iterator[RealApp]:
    folder = Path(tempfile.mkdtemp(prefix="wp-", dir="/tmp"))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    kv_store = {"enabled": True, "object_blocks": OBJECT_BLOCKS, "memory_gib": 0.25}
    contexts = {"journal": f"{folder}/contexts.sqlite", "lease_s": 2.0}
    try:
        with running_app(folder, port, contexts=contexts, kv_store=kv_store) as app:
            yield app
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def app(started: RealApp) -> RealApp:
    """Running and with nothing stored, whatever the test before has left."""
    if started.name not in serve.status().applications:
        started.deploy()
        started.until_known(REPLICAS)
    until(lambda: stored_blocks(started) == 0, RELEASE_LIMIT_S)
    return started


@pytest.fixture
def ann(app: RealApp) -> Iterator[Caller]:
    with httpx.Client(base_url=app.url, timeout=120) as client:
        yield Caller(client, "m", "ann")


def stored_blocks(app: RealApp) -> int:
    return int(app.stats()["index"]["stored_blocks"])


def stores(app: RealApp) -> list[StoreId]:
    return store_names(app.name)


def store_of(app: RealApp) -> ActorHandle:
    (name,) = stores(app)
    return ray.get_actor(name, namespace=NAMESPACE)


def store_pid(app: RealApp) -> int | None:
    """None while there is no store that answers."""
    try:
        return pid_of(store_of(app))
    except (ray.exceptions.RayError, ValueError):
        return None


def prompt(seed: int, tokens: int) -> list[int]:
    return [300 + (seed * 131 + place * 7919) % 600 for place in range(tokens)]


def test_a_context_s_blocks_are_stored_and_leave_with_it(app: RealApp, ann: Caller) -> None:
    created = ann.create(prompt=prompt(1, 3 * OBJECT_TOKENS + 5)).json()
    name, cache = created["id"], created["cache"]
    assert cache["stored_tokens"] == 3 * OBJECT_TOKENS
    assert cache["stored_bytes"] > 0
    assert stored_blocks(app) == 3 * OBJECT_BLOCKS
    answer = ann.complete(name, prompt(2, 2 * OBJECT_TOKENS))
    assert answer.status_code == 200, answer.text
    until(lambda: stored_blocks(app) == 5 * OBJECT_BLOCKS, 30)
    assert ann.get(name)["cache"]["stored_tokens"] == 5 * OBJECT_TOKENS
    assert ann.call("DELETE", f"/{name}").status_code == 200
    until(lambda: stored_blocks(app) == 0, RELEASE_LIMIT_S)


def test_what_a_fork_shares_stays_for_it(app: RealApp, ann: Caller) -> None:
    name = ann.created(prompt=prompt(3, 2 * OBJECT_TOKENS + 5))
    until(lambda: stored_blocks(app) == 2 * OBJECT_BLOCKS, 30)
    fork = ann.call("POST", f"/{name}/fork").json()["id"]
    assert ann.complete(name, prompt(4, OBJECT_TOKENS)).status_code == 200
    until(lambda: stored_blocks(app) == 3 * OBJECT_BLOCKS, 30)
    assert ann.call("DELETE", f"/{name}").status_code == 200
    until(lambda: stored_blocks(app) == 2 * OBJECT_BLOCKS, RELEASE_LIMIT_S)
    assert ann.call("DELETE", f"/{fork}").status_code == 200
    until(lambda: stored_blocks(app) == 0, RELEASE_LIMIT_S)


def test_a_killed_store_is_there_again_for_the_next_turn(app: RealApp, ann: Caller) -> None:
    name = ann.created(prompt=prompt(5, 2 * OBJECT_TOKENS + 5))
    until(lambda: stored_blocks(app) >= 2 * OBJECT_BLOCKS, 30)
    killed = store_pid(app)
    assert killed is not None
    os.kill(killed, signal.SIGKILL)
    until(lambda: store_pid(app) not in (None, killed), 30)
    assert ann.complete(name, prompt(6, OBJECT_TOKENS)).status_code == 200
    until(lambda: stored_blocks(app) >= OBJECT_BLOCKS, 30)
    assert ann.call("DELETE", f"/{name}").status_code == 200


def test_stored_blocks_outlive_the_replica_that_computed_them(app: RealApp, ann: Caller) -> None:
    name = ann.created(prompt=prompt(7, 3 * OBJECT_TOKENS + 5))
    until(lambda: stored_blocks(app) >= 3 * OBJECT_BLOCKS, 30)
    os.kill(app.pids(LLM).pop(), signal.SIGKILL)
    assert ann.complete(name, prompt(8, 10)).status_code == 200
    assert stored_blocks(app) >= 3 * OBJECT_BLOCKS
    until(lambda: len(app.pids(LLM)) == 2, 200)
    assert ann.get(name)["turns"] == 1
    assert ann.call("DELETE", f"/{name}").status_code == 200


def test_a_new_replica_begins_with_the_prefixes_that_are_used_most(
    app: RealApp, ann: Caller
) -> None:
    name = ann.created(prompt=prompt(9, 2 * OBJECT_TOKENS + 5))
    store = store_of(app)
    objects = ray.get(store.listing.remote(), timeout=10)
    for _ in range(3):
        unknown = pack_origins([None] * len(unpack_objects(objects)))
        ray.get(store.offer.remote(objects, unknown), timeout=10)
    app.until_known(REPLICAS)
    before = set(app.indexed())
    app.deploy(replicas=3)
    app.until_known(3)
    (new,) = set(app.indexed()) - before
    stored_hashes = {h for o in unpack_objects(objects) for h in unpack_hashes(o.hashes).tolist()}
    assert len(stored_hashes) == 2 * OBJECT_BLOCKS
    assert app.indexed()[new] == stored_hashes
    assert ann.call("DELETE", f"/{name}").status_code == 200
    app.deploy(replicas=REPLICAS)
    app.until_known(REPLICAS)


def test_the_last_replica_s_leave_ends_the_store(app: RealApp) -> None:
    assert len(stores(app)) == 1
    serve.delete(app.name)
    until(lambda: not stores(app), END_LIMIT_S)
