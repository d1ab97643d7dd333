"""How fast KV leaves an engine's pool for a store and comes back, beside Ray's and plain copies.

Two Ray nodes on one machine, a store on each; the engine's place is this process, on the first.
"""

import itertools
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import ray
from numpy.typing import NDArray
from ray.actor import ActorHandle
from ray.cluster_utils import Cluster
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from replicas.kv.connector.messages import LoadJob, Piece, SaveObject
from replicas.kv.connector.pool import HostPool
from replicas.kv.connector.ray_store import RayStores
from replicas.kv.connector.settings import StoreAddress
from replicas.kv.connector.transfers import Transfers
from replicas.kv.store.objects import ObjectKey
from replicas.kv.store.opening import open_store
from replicas.kv.store.settings import StoreSettings
from router.core.transfer import Keeping
from router.serve.actor_family import NAMESPACE

OBJECT_BLOCKS, LAYERS = 16, 16
OBJECT_STORE_BYTES = 1 << 30
LIMIT_S = 60.0
POLL_S = 0.0002
_APPLICATION = "bench-kv"

Bytes = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Nodes:
    """Ids of the node of this process and of another, with the names of their stores."""

    gcs_address: str
    own: str
    other: str
    stores: dict[str, str]


@dataclass(frozen=True, slots=True)
class Round:
    """Seconds for the same bytes: `copy_out_s` is the part of a save that an engine waits for."""

    copy_s: float
    put_s: float
    get_s: float
    copy_out_s: float
    save_s: float
    load_s: float


@contextmanager
def two_nodes(folder: Path) -> Iterator[Nodes]:
    """A cluster with nothing but two stores; `folder` must have a short path."""
    os.environ["RAY_TMPDIR"] = str(folder)
    arguments = {"num_cpus": 1, "object_store_memory": OBJECT_STORE_BYTES}
    cluster = Cluster(
        initialize_head=True, head_node_args={**arguments, "include_dashboard": False}
    )
    try:
        cluster.add_node(**arguments)
        ray.init(address=cluster.address, namespace=NAMESPACE, log_to_driver=False)
        own = ray.get_runtime_context().get_node_id()
        (other,) = [node["NodeID"] for node in ray.nodes() if node["NodeID"] != own]
        stores = {node_id: _open(node_id) for node_id in (own, other)}
        yield Nodes(cluster.address, own, other, stores)
    finally:
        ray.shutdown()
        cluster.shutdown()


def _open(node_id: str) -> str:
    settings = StoreSettings(
        _APPLICATION, node_id, memory_bytes=OBJECT_STORE_BYTES // 2, linger_s=3600.0
    )
    ray.get(open_store(settings).stats.remote(), timeout=LIMIT_S)
    return settings.store_id


class Putter:
    """Somebody on another node who puts bytes there."""

    def put(self, count: int, size_bytes: int) -> list[ray.ObjectRef]:
        return [ray.put(np.full(size_bytes, number, np.uint8)) for number in range(count)]


class Bench:
    """`total_bytes` of KV in objects of `object_bytes`, to and from the store of `node_id`."""

    def __init__(self, nodes: Nodes, node_id: str, object_bytes: int, total_bytes: int) -> None:
        self._count, self._object_bytes = total_bytes // object_bytes, object_bytes
        self._blocks = self._count * OBJECT_BLOCKS
        self._store_id = nodes.stores[node_id]
        layer_bytes = object_bytes // OBJECT_BLOCKS // LAYERS
        random = np.random.default_rng(object_bytes)
        self._layers = [
            random.integers(0, 256, (self._blocks, layer_bytes), np.uint8) for _ in range(LAYERS)
        ]
        self._content = [layer.copy() for layer in self._layers]
        self._source = random.integers(0, 256, total_bytes, np.uint8)
        self._target = np.ones_like(self._source)
        self._transfers = Transfers(
            HostPool(self._layers),
            RayStores(StoreAddress("auto", NAMESPACE, self._store_id, "model")),
            held_bytes=2 * total_bytes,
            load_timeout_s=LIMIT_S,
        )
        self._putter = _putter(node_id)
        self._numbers = itertools.count()

    def round(self) -> Round:
        """Everything once; raises `RuntimeError` where not all of it is saved and loaded right."""
        copy_s = seconds(lambda: np.copyto(self._target, self._source))
        put_s, get_s = self._put_and_get()
        keys = [self._next_key() for _ in range(self._count)]
        copy_out_s, save_s = self._save(keys)
        load_s = self._load(keys)
        ray.get(self._store().discard.remote(keys), timeout=LIMIT_S)
        return Round(copy_s, put_s, get_s, copy_out_s, save_s, load_s)

    def close(self) -> None:
        self._transfers.close()
        ray.kill(self._putter)

    def _put_and_get(self) -> tuple[float, float]:
        parts = np.split(self._source, self._count)
        put_s = seconds(lambda: [ray.put(part) for part in parts])
        refs = ray.get(self._putter.put.remote(self._count, self._object_bytes), timeout=LIMIT_S)
        targets = np.split(self._target, self._count)

        def get() -> None:
            for target, data in zip(targets, ray.get(refs, timeout=LIMIT_S), strict=True):
                np.copyto(target, data)

        return put_s, seconds(get)

    def _save(self, keys: Sequence[bytes]) -> tuple[float, float]:
        hashes = bytes(8 * OBJECT_BLOCKS)
        orders = [
            SaveObject(key, hashes, self._block_ids(place), Keeping.REUSE)
            for place, key in enumerate(keys)
        ]
        began = time.perf_counter()
        self._transfers.save(orders)
        copied = time.perf_counter()
        saved = 0
        while saved < len(keys):
            report = self._transfers.report()
            if report.unsaved:
                raise RuntimeError("not all objects were saved")
            saved += len(report.saved)
            time.sleep(POLL_S)
        return copied - began, time.perf_counter() - began

    def _load(self, keys: Sequence[bytes]) -> float:
        for layer in self._layers:
            layer[:] = 0
        pieces = [
            Piece(key, self._store_id, OBJECT_BLOCKS, 0, OBJECT_BLOCKS * place, ids)
            for place, key in enumerate(keys)
            if (ids := self._block_ids(place))
        ]
        began = time.perf_counter()
        self._transfers.load(LoadJob("load", tuple(pieces)))
        while not (outcome := self._transfers.finished())[0]:
            time.sleep(POLL_S)
        took_s = time.perf_counter() - began
        is_same = all(map(np.array_equal, self._content, self._layers))
        if outcome[1] or not is_same:
            raise RuntimeError("what was loaded is not what was saved")
        return took_s

    def _block_ids(self, place: int) -> tuple[int, ...]:
        return tuple(range(place * OBJECT_BLOCKS, (place + 1) * OBJECT_BLOCKS))

    def _next_key(self) -> bytes:
        number = next(self._numbers).to_bytes(8, "big")
        return ObjectKey(b"bench-kv" * 4, os.urandom(24) + number).pack()

    def _store(self) -> ActorHandle:
        return ray.get_actor(self._store_id, namespace=NAMESPACE)


def _putter(node_id: str) -> ActorHandle:
    affinity = NodeAffinitySchedulingStrategy(node_id, soft=False)
    return ray.remote(Putter).options(num_cpus=0, scheduling_strategy=affinity).remote()


def rounds_of(bench: Bench, warm_ups: int, count: int) -> list[Round]:
    """The first ones touch memory that later ones find touched."""
    try:
        return [bench.round() for _ in range(warm_ups + count)][warm_ups:]
    finally:
        bench.close()


def seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def ratio(rounds: Sequence[Round]) -> float:
    """How much of a plain copy's bandwidth a load has: the median over rounds."""
    return statistics.median(one.copy_s / one.load_s for one in rounds)
