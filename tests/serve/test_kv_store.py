"""A node's KV store in a real cluster: made, found, killed, told of, handed over, ended."""

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec
import numpy as np
import pytest
import ray
from msgspec.structs import replace
from ray.actor import ActorHandle

from replicas.kv.store.contents import StoredObject
from replicas.kv.store.opening import NodeStore, open_store
from replicas.kv.store.origins import Origin, WarmPrefix
from replicas.kv.store.settings import StoreSettings
from replicas.kv.store.wire import pack_objects, pack_origins, unpack_objects
from router.contexts.messages import Kind, NewContext
from router.contexts.settings import ContextSettings
from router.core.types import Tenant
from router.serve.actor_family import named
from router.serve.context_client import ContextClient
from router.serve.context_connection import NamedContexts
from router.serve.context_generations import remove_contexts
from router.serve.generations import find_index, open_index, remove_index
from router.serve.index_settings import IndexSettings
from tests.serve import two_nodes
from tests.serve.cached_app import pid_of, until

pytestmark = pytest.mark.ray

BLOCKS, OBJECT_BYTES = 4, 200_000
INDEX = IndexSettings(max_replicas=8, max_blocks=10_000, sweep_interval_s=0.05)
END_LIMIT_S = 30.0

Bytes = np.ndarray[Any, np.dtype[np.uint8]]


def stored(number: int, *, is_for_reuse: bool = True) -> StoredObject:
    hashes = np.arange(number * 100, number * 100 + BLOCKS, dtype="<u8").tobytes()
    return StoredObject(bytes([number]) * 64, "m", hashes, BLOCKS, OBJECT_BYTES, is_for_reuse)


def data(number: int) -> Bytes:
    return np.full(OBJECT_BYTES, number, np.uint8)


@dataclass
class Node:
    """An application's index, and its stores on this node. Lives are short here."""

    application: str = field(default_factory=lambda: f"kv-{uuid4().hex[:8]}")
    stores: list[ActorHandle] = field(default_factory=list)

    @property
    def settings(self) -> StoreSettings:
        return StoreSettings(
            self.application,
            ray.get_runtime_context().get_node_id(),
            memory_bytes=16 * 2**20,
            lease_s=60.0,
            linger_s=1.0,
            claims_interval_s=0.2,
            unclaimed_after_s=60.0,
        )

    def store(self, replica: str = "one", **changes: Any) -> ActorHandle:
        """As a replica that comes up gets it."""
        actor = open_store(replace(self.settings, **changes))
        ray.get(actor.renew.remote(replica, "m"), timeout=30)
        self.stores.append(actor)
        return actor

    def open_index(self) -> None:
        open_index(self.application, "m", INDEX)

    def indexed_blocks(self) -> int:
        actor = find_index(self.application, "m")
        assert actor is not None
        stats = msgspec.msgpack.decode(ray.get(actor.stats.remote(), timeout=10))
        return int(stats["index"]["stored_blocks"])


@pytest.fixture
def node(ray_cluster: None) -> Iterator[Node]:
    node = Node()
    node.open_index()
    yield node
    for actor in node.stores:
        ray.kill(actor, no_restart=True)
    remove_index(node.application, "m")
    remove_contexts(node.application)


def put(store: ActorHandle, *objects: StoredObject) -> None:
    arrays = [data(item.key[0]) for item in objects]
    ray.get(store.put.remote(pack_objects(objects), *arrays), timeout=30)


def offer(store: ActorHandle, *objects: StoredObject, **origins: Origin) -> list[bool]:
    known = [origins.get(f"of_{item.key[0]}") for item in objects]
    answer = store.offer.remote(pack_objects(objects), pack_origins(known))
    wanted: list[bool] = ray.get(answer, timeout=10)
    return wanted


def held(store: ActorHandle) -> set[int]:
    return {item.key[0] for item in unpack_objects(ray.get(store.listing.remote(), timeout=10))}


def is_gone(store: ActorHandle) -> bool:
    try:
        ray.get(store.stats.remote(), timeout=10)
    except ray.exceptions.RayActorError:
        return True
    return False


def test_replicas_of_a_node_share_its_store_and_the_index_knows_what_it_has(node: Node) -> None:
    one, other = node.store("one"), node.store("other")
    put(one, stored(1), stored(2))
    assert offer(other, stored(1), stored(3)) == [False, True]
    (first, none) = ray.get(other.locate.remote([stored(1).key, stored(3).key]))
    assert ray.get(first[0]).tolist() == data(1).tolist()
    assert none == []
    until(lambda: node.indexed_blocks() == 2 * BLOCKS)
    ray.get(one.discard.remote([stored(1).key]))
    until(lambda: node.indexed_blocks() == BLOCKS)


def test_a_killed_store_is_made_again_by_the_next_replica_that_calls(node: Node) -> None:
    store = node.store()
    put(store, stored(1))
    until(lambda: node.indexed_blocks() == BLOCKS)
    os.kill(pid_of(store), signal.SIGKILL)
    until(lambda: is_gone(store))
    again = node.store()
    put(again, stored(2), stored(3))
    until(lambda: node.indexed_blocks() == 2 * BLOCKS)
    assert held(again) == {2, 3}


def test_an_index_that_begins_anew_learns_everything_again(node: Node) -> None:
    put(node.store(), stored(1), stored(2))
    until(lambda: node.indexed_blocks() == 2 * BLOCKS)
    remove_index(node.application, "m")
    node.open_index()
    until(lambda: node.indexed_blocks() == 2 * BLOCKS)


async def test_a_new_replica_hears_of_the_prefixes_that_are_used_most(node: Node) -> None:
    """Of all stores of the application, those of its own node first."""
    own, other = node.store("one"), node.store("other", memory_bytes=2**20)
    salted = {f"of_{number}": Origin(0, None, bytes([number]) * 8, "salt") for number in (1, 2, 3)}
    for store, numbers in ((own, (1, 2)), (other, (2, 3))):
        objects = [stored(number) for number in numbers]
        offer(store, *objects, **salted)
        put(store, *objects)
        offer(store, *objects, **salted)
    names = [
        replace(node.settings, **changes).store_id for changes in ({}, {"memory_bytes": 2**20})
    ]
    found = await NodeStore(node.settings).hottest("m", 8, 64)
    prefixes = {
        n: WarmPrefix(bytes([n]) * 8, "salt", ((stored(n).key, BLOCKS),)) for n in (1, 2, 3)
    }
    assert sorted(found, key=lambda item: item[1].token_ids) == [
        (names[0], prefixes[1]),
        (names[0], prefixes[2]),
        (names[1], prefixes[3]),
    ]
    assert found[-1][0] == names[1]


def test_a_store_ends_a_while_after_its_last_replica_and_the_index_forgets_it(node: Node) -> None:
    store = node.store("one")
    node.store("other")
    put(store, stored(1))
    until(lambda: node.indexed_blocks() == BLOCKS)
    ray.get(store.leave.remote("one"))
    ray.get(store.leave.remote("other"))
    until(lambda: is_gone(store), END_LIMIT_S)
    assert node.indexed_blocks() == 0
    assert named(node.settings.store_id) is None


def test_a_store_ends_when_its_replicas_have_fallen_silent(node: Node) -> None:
    store = node.store(lease_s=0.5)
    until(lambda: is_gone(store), END_LIMIT_S)


def test_a_store_that_ends_gives_what_contexts_claim_to_another(node: Node) -> None:
    ending, staying = node.store("one"), node.store("other", memory_bytes=2**20)
    put(ending, stored(1, is_for_reuse=False), stored(2), stored(3, is_for_reuse=False))
    ray.get(ending.leave.remote("one"))
    until(lambda: is_gone(ending), END_LIMIT_S)
    assert held(staying) == {1, 3}
    (refs,) = ray.get(staying.locate.remote([stored(3).key]))
    assert ray.get(refs[0], timeout=10).tolist() == data(3).tolist()
    until(lambda: node.indexed_blocks() == 2 * BLOCKS)


@pytest.mark.slow
def test_what_contexts_claim_outlives_its_node() -> None:
    """In a cluster of its own, of two nodes."""
    two_nodes.check("stores_hand_over")


async def test_what_was_kept_for_contexts_alone_goes_with_the_last_of_them(node: Node) -> None:
    folder = Path(tempfile.mkdtemp(prefix="wp-ctx-", dir="/tmp"))
    settings = ContextSettings(node.application, f"{folder}/journal")
    client = ContextClient(NamedContexts(settings))
    claims = b"".join(stored(number).hashes[-8:] for number in (1, 2))
    new = NewContext("m", Kind.PROMPT, b"aaaa", b"", 3600, claims=claims)
    view = await client.create(Tenant("t"), new)
    store = node.store(unclaimed_after_s=1.0)
    put(store, *[stored(number, is_for_reuse=False) for number in (1, 2, 3)], stored(4))
    until(lambda: held(store) == {1, 2, 4}, END_LIMIT_S)
    await client.delete(Tenant("t"), view.id)
    until(lambda: held(store) == {4})
    until(lambda: node.indexed_blocks() == BLOCKS)
    await client.close()
    shutil.rmtree(folder, ignore_errors=True)
