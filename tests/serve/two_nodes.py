"""A cluster of two nodes in a process of its own: what is left of the node that goes, what stays.

`check` runs one of its parts; the process ends with status 0 where all of that is so.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import ray
from ray.actor import ActorHandle
from ray.cluster_utils import Cluster

from replicas.kv.store.contents import StoredObject
from replicas.kv.store.opening import open_store
from replicas.kv.store.settings import StoreSettings
from replicas.kv.store.wire import pack_objects, pack_origins, unpack_objects
from router.contexts.settings import ContextSettings
from router.serve.context_generations import open_contexts
from router.serve.generations import open_index
from router.serve.index_settings import IndexSettings

OBJECT_BYTES = 2**20
NODE: dict[str, Any] = {"num_cpus": 1, "object_store_memory": 2**27}
ROOT = Path(__file__).parents[2]
ACTORS = 4
"""Of a kind: by chance all were on the head node, and again after a restart, once in 256 runs."""


def check(part: str) -> None:
    """Raises `AssertionError` with what the process said."""
    command = [sys.executable, "-m", "tests.serve.two_nodes", part]
    with tempfile.TemporaryDirectory(prefix="wp2-", dir="/tmp") as folder:
        (Path(folder) / "ray").mkdir()
        environment = os.environ | {"RAY_TMPDIR": folder}
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240
        )
    assert done.returncode == 0, done.stderr


def main(part: str) -> int:
    head = NODE | {"include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    cluster.add_node(**NODE)
    ray.init(address=cluster.address, log_to_driver=False)
    try:
        PARTS[part](cluster)
    finally:
        ray.shutdown()
        cluster.shutdown()
    return 0


def stores_hand_over(cluster: Cluster) -> None:
    """The KV of the node that goes is on the other."""
    (worker,) = cluster.worker_nodes
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


def directories_stay(cluster: Cluster) -> None:
    """Indexes and context managers live on the head node, also after they were killed."""
    indexes = [open_index("app", f"m{number}", IndexSettings()) for number in range(ACTORS)]
    redis = [ContextSettings(f"app{number}", "redis://127.0.0.1:1") for number in range(ACTORS)]
    actors = indexes + [open_contexts(settings) for settings in redis]
    head = cluster.head_node.node_id
    assert [node_of(actor) for actor in actors] == [head] * len(actors)
    for actor in actors:
        ray.kill(actor, no_restart=False)
    assert [node_of(actor) for actor in actors] == [head] * len(actors)


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


def node_of(actor: ActorHandle) -> str:
    """Waits for an actor that starts again."""
    found: list[str] = []

    def answers() -> bool:
        asked = actor.__ray_call__.remote(lambda _: ray.get_runtime_context().get_node_id())
        try:
            found.append(ray.get(asked, timeout=30))
        except ray.exceptions.RayActorError:
            return False
        return True

    until(answers)
    return found[0]


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.2)


PARTS: Mapping[str, Callable[[Cluster], None]] = {
    part.__name__: part for part in (stores_hand_over, directories_stay)
}

if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
