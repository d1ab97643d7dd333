"""A cluster of two nodes in a process of its own: the KV of the one that goes is on the other.

Run by `test_kv_store`; ends with status 0 where all of it is so.
"""

import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import ray
from ray.actor import ActorHandle
from ray.cluster_utils import Cluster

from replicas.kv.store.contents import StoredObject
from replicas.kv.store.opening import open_store
from replicas.kv.store.settings import StoreSettings
from replicas.kv.store.wire import pack_objects, pack_origins, unpack_objects

OBJECT_BYTES = 2**20
NODE: dict[str, Any] = {"num_cpus": 1, "object_store_memory": 2**27}


def main() -> int:
    head = NODE | {"include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    worker = cluster.add_node(**NODE)
    ray.init(address=cluster.address, log_to_driver=False)
    try:
        staying, going = store(cluster.head_node.node_id), store(worker.node_id)
        objects = [stored(number) for number in range(4)]
        ray.get(going.offer.remote(pack_objects(objects), pack_origins([None] * 4)), timeout=30)
        arrays = [np.full(OBJECT_BYTES, number, np.uint8) for number in range(4)]
        ray.get(going.put.remote(pack_objects(objects), *arrays), timeout=60)
        ray.get(going.leave.remote("replica"), timeout=30)
        until(lambda: is_gone(going))
        cluster.remove_node(worker)
        assert len(unpack_objects(ray.get(staying.listing.remote(), timeout=30))) == 4
        found = ray.get(staying.locate.remote([item.key for item in objects]), timeout=30)
        data = [ray.get(refs[0], timeout=30) for refs in found]
        assert [int(each[-1]) for each in data] == [0, 1, 2, 3]
    finally:
        ray.shutdown()
        cluster.shutdown()
    return 0


def store(node_id: str) -> ActorHandle:
    settings = StoreSettings("two-nodes", node_id, 2**26, lease_s=120.0, linger_s=1.0)
    actor = open_store(settings)
    ray.get(actor.renew.remote("replica", "m"), timeout=60)
    return actor


def stored(number: int) -> StoredObject:
    """Kept for contexts alone, and so claimed until somebody knows better."""
    hashes = bytes([number]) * 8
    return StoredObject(bytes([number]) * 64, "m", hashes, 1, OBJECT_BYTES, is_for_reuse=False)


def is_gone(actor: ActorHandle) -> bool:
    try:
        ray.get(actor.stats.remote(), timeout=10)
    except ray.exceptions.RayActorError:
        return True
    return False


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.2)


if __name__ == "__main__":
    sys.exit(main())
