"""Stored objects in a real cluster: who dies takes nothing along, and nobody waits for the dead."""

import os
import signal
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import pytest
import ray
from ray.actor import ActorHandle

from replicas.kv.connector.messages import Piece
from replicas.kv.connector.ray_store import RayStores
from replicas.kv.connector.settings import StoreAddress
from replicas.kv.connector.transfers import SealedObject
from replicas.kv.store.objects import ObjectKey, UnusableObject, new_object, opened, payload, seal
from replicas.kv.store.opening import open_store
from replicas.kv.store.settings import StoreSettings
from replicas.kv.store.wire import unpack_objects
from router.core.transfer import Keeping
from router.serve.actor_family import NAMESPACE
from tests.serve.cached_app import pid_of, until

pytestmark = pytest.mark.ray

BLOCKS = 4
LIMIT_S = 5.0

Bytes = np.ndarray[Any, np.dtype[np.uint8]]


def key_of(number: int) -> bytes:
    return ObjectKey(b"n" * 32, number.to_bytes(32, "big")).pack()


def sealed(number: int, block_bytes: int = 60_000) -> SealedObject:
    data = new_object(BLOCKS, block_bytes)
    payload(data)[:] = number
    seal(data, ObjectKey.unpack(key_of(number)), BLOCKS)
    hashes = np.arange(number, number + BLOCKS, dtype="<u8").tobytes()
    return SealedObject(key_of(number), hashes, Keeping.REUSE, BLOCKS, data)


def number_in(data: Bytes | None, number: int, block_bytes: int = 60_000) -> int | None:
    """What an engine would load; None for a miss."""
    if data is None:
        return None
    try:
        blocks = opened(data, ObjectKey.unpack(key_of(number)), BLOCKS, block_bytes)
    except UnusableObject:
        return None
    return int(blocks[0])


class Node:
    """Stores of this node, and engines' ways to them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._opened: dict[str, ActorHandle] = {}

    def store(self, **settings: Any) -> str:
        """The name of one of its own, or the same again where its settings are."""
        node_id = ray.get_runtime_context().get_node_id()
        fields = {"application": uuid4().hex, "memory_bytes": 64 * 2**20, "linger_s": 600.0}
        wanted = StoreSettings(node_id=node_id, **fields | settings)
        self._opened[wanted.store_id] = open_store(wanted)
        ray.get(self._opened[wanted.store_id].stats.remote(), timeout=30)
        return wanted.store_id

    def actor(self, store_id: str) -> ActorHandle:
        return self._opened[store_id]

    def held(self, store_id: str) -> set[bytes]:
        listing = ray.get(self._opened[store_id].listing.remote(), timeout=10)
        return {stored.key for stored in unpack_objects(listing)}

    def count(self, store_id: str, name: str) -> float:
        counts: dict[str, float] = ray.get(self._opened[store_id].stats.remote(), timeout=10)
        return counts[name]

    def close(self) -> None:
        for actor in self._opened.values():
            ray.kill(actor, no_restart=True)


@pytest.fixture
def node(ray_cluster: None) -> Iterator[Node]:
    with tempfile.TemporaryDirectory(prefix="wp-kv-", dir="/tmp") as folder:
        node = Node(Path(folder))
        yield node
        node.close()


def way_to(store_id: str) -> RayStores:
    return RayStores(StoreAddress("auto", NAMESPACE, store_id, "m"))


def fetched(way: RayStores, store_id: str, *numbers: int) -> list[int | None]:
    pieces = [Piece(key_of(number), store_id, BLOCKS, 0, 0, (0, 1, 2, 3)) for number in numbers]
    found = way.fetch(pieces, LIMIT_S)
    return [number_in(data, number) for data, number in zip(found, numbers, strict=True)]


@ray.remote(num_cpus=0)
class Saver:
    """The engine of a replica that will be killed."""

    def save(self, store_id: str, items: Sequence[SealedObject]) -> None:
        RayStores(StoreAddress("auto", NAMESPACE, store_id, "m")).put(items)

    def pid(self) -> int:
        return os.getpid()


def test_what_a_killed_process_had_saved_is_still_there(node: Node) -> None:
    store_id = node.store()
    saver = Saver.remote()
    ray.get(saver.save.remote(store_id, [sealed(1), sealed(2)]), timeout=30)
    os.kill(ray.get(saver.pid.remote()), signal.SIGKILL)
    until(lambda: is_dead(saver))
    assert fetched(way_to(store_id), store_id, 1, 2, 3) == [1, 2, None]


def is_dead(actor: ActorHandle) -> bool:
    try:
        ray.get(actor.pid.remote(), timeout=5)
    except ray.exceptions.RayActorError:
        return True
    return False


def test_a_store_that_is_killed_is_a_miss_within_the_time_limit(node: Node) -> None:
    """Before the fetch and, at some moment, during that of large objects."""
    for delay_s in (0.0, 0.001, 0.003, 0.01, 0.03):
        store_id = node.store()
        way = way_to(store_id)
        way.put([sealed(number, 2_000_000) for number in range(4)])
        pid = pid_of(node.actor(store_id))
        killer = threading.Timer(delay_s, os.kill, (pid, signal.SIGKILL))
        killer.start()
        began_s = time.monotonic()
        pieces = [Piece(key_of(n), store_id, BLOCKS, 0, 0, (0, 1, 2, 3)) for n in range(4)]
        found = way.fetch(pieces, LIMIT_S)
        assert time.monotonic() - began_s < LIMIT_S + 1
        for number, data in enumerate(found):
            assert number_in(data, number, 2_000_000) in (None, number)
        killer.join()
        assert fetched(way, store_id, 0, 1) == [None, None]


@ray.remote(num_cpus=0)
class Stuck:
    """A store that hangs."""

    def locate(self, keys: Sequence[bytes]) -> None:
        time.sleep(600)


def test_a_store_that_hangs_is_a_miss_and_the_others_still_answer(node: Node) -> None:
    store_id, stuck_id = node.store(), uuid4().hex
    stuck = Stuck.options(name=stuck_id, namespace=NAMESPACE).remote()
    way = way_to(store_id)
    way.put([sealed(1)])
    pieces = [Piece(key_of(1), name, BLOCKS, 0, 0, (0,)) for name in (store_id, stuck_id, "nobody")]
    pieces[1] = Piece(key_of(2), stuck_id, BLOCKS, 0, 0, (0,))
    pieces[2] = Piece(key_of(3), "nobody", BLOCKS, 0, 0, (0,))
    began_s = time.monotonic()
    found = way.fetch(pieces, 1.0)
    assert time.monotonic() - began_s < 2
    assert [number_in(data, n) for n, data in enumerate(found, 1)] == [1, None, None]
    ray.kill(stuck)


def test_what_turns_out_damaged_leaves_the_store_that_has_it(node: Node) -> None:
    own_id, other_id = node.store(), node.store()
    damaged = sealed(1)
    damaged.data[-1] ^= 1
    way_to(other_id).put([damaged, sealed(2)])
    way = way_to(own_id)
    assert fetched(way, other_id, 1, 2) == [None, 2]
    way.discard([key_of(1)])
    until(lambda: node.held(other_id) == {key_of(2)})


def test_what_memory_cannot_hold_comes_back_from_the_disk(node: Node) -> None:
    settings = {"application": uuid4().hex, "memory_bytes": 600_000, "disk_bytes": 2**30}
    store_id = node.store(**settings, disk_folder=str(node.folder / "kv"))
    way = way_to(store_id)
    for number in range(6):
        way.put([sealed(number)])
    until(lambda: node.count(store_id, "disk_objects") == 4)
    assert fetched(way, store_id, *range(6)) == list(range(6))
    assert node.count(store_id, "disk_hits") >= 4
    way.discard([key_of(0)])
    until(lambda: len(list((node.folder / "kv").rglob("*.kv"))) <= 5)
    assert fetched(way, store_id, 0, 1) == [None, 1]


def test_a_store_that_comes_back_has_what_its_disk_had(node: Node) -> None:
    settings = {"application": uuid4().hex, "memory_bytes": 600_000, "disk_bytes": 2**30}
    folder = str(node.folder / "kv")
    store_id = node.store(**settings, disk_folder=folder)
    for number in range(6):
        way_to(store_id).put([sealed(number)])
    until(lambda: node.count(store_id, "disk_objects") == 4)
    os.kill(pid_of(node.actor(store_id)), signal.SIGKILL)
    until(lambda: is_gone(node.actor(store_id)))
    files = sorted(Path(folder).rglob("*.kv"))
    files[0].write_bytes(files[0].read_bytes()[:-1])
    assert node.store(**settings, disk_folder=folder) == store_id
    until(lambda: len(node.held(store_id)) == 3)
    numbers = [number for number in range(6) if key_of(number) in node.held(store_id)]
    assert fetched(way_to(store_id), store_id, *numbers) == numbers


def is_gone(store: ActorHandle) -> bool:
    try:
        ray.get(store.stats.remote(), timeout=10)
    except ray.exceptions.RayActorError:
        return True
    return False
