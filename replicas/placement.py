"""Where a replica runs: inside a Serve application or alone, as in tests."""

import os
from dataclasses import dataclass
from pathlib import Path

from replicas.cache_report import Gauges, RayGauges
from replicas.kv.connector.settings import ConnectorSettings, StoreAddress
from replicas.kv.store.disk_tier import make_private
from replicas.kv.store.lease import StoreLease
from replicas.kv.store.settings import GIB, store_settings
from replicas.warming import HotPrefixes
from router.configuration import ModelConfig
from router.core.types import ReplicaId, StoreId
from router.kv_store_config import KvStoreConfig
from router.serve.index_publisher import EventConnection


@dataclass(frozen=True, slots=True)
class StorePlace:
    """The KV store of this node: the right to it, how the engine's process finds it, and what the
    application's stores have for a cold replica."""

    lease: StoreLease
    connector: ConnectorSettings
    prefixes: HotPrefixes

    @property
    def store_id(self) -> StoreId:
        return StoreId(self.connector.address.store_id)


@dataclass(frozen=True, slots=True)
class Placement:
    """Who this replica is to routers, its way to the block index, to metrics and to the KV store of
    its node; none of these outside of Serve.
    """

    replica_id: ReplicaId
    index: EventConnection | None = None
    gauges: Gauges | None = None
    store: StorePlace | None = None


def is_in_ray() -> bool:
    import ray

    return bool(ray.is_initialized())


def placement(model: ModelConfig, kv_store: KvStoreConfig) -> Placement:
    """The calling process's own."""
    if not is_in_ray():
        return _alone()
    from ray import serve
    from ray.serve.exceptions import RayServeException

    from router.serve.index_connection import NamedIndex

    try:
        context = serve.get_replica_context()
    except RayServeException:
        return _alone()
    replica_id = ReplicaId(context.replica_id.unique_id)
    return Placement(
        replica_id,
        NamedIndex(context.app_name, model.name),
        RayGauges(),
        _store_place(replica_id, context.app_name, model, kv_store),
    )


def _store_place(
    replica_id: ReplicaId, application: str, model: ModelConfig, config: KvStoreConfig
) -> StorePlace | None:
    """None for engines that compute no KV. Raises `ConfigurationError` where a store could not use
    its folder here."""
    if not config.enabled or model.engine != "vllm":
        return None
    if config.disk_folder is not None:
        make_private(Path(config.disk_folder))
    import ray

    from replicas.kv.store.opening import NodeStore
    from router.serve.actor_family import NAMESPACE

    runtime = ray.get_runtime_context()
    settings = store_settings(config, application, runtime.get_node_id())
    address = StoreAddress(runtime.gcs_address, NAMESPACE, settings.store_id, model.name)
    store = NodeStore(settings)
    return StorePlace(
        StoreLease(store, replica_id, model.name),
        ConnectorSettings(
            address, config.object_blocks, int(config.held_gib * GIB), config.load_timeout_s
        ),
        store,
    )


def _alone() -> Placement:
    return Placement(ReplicaId(f"process-{os.getpid()}"))
