"""Where a replica runs: inside a Serve application or alone, as in tests."""

import os
from dataclasses import dataclass

from replicas.cache_report import Gauges, RayGauges
from router.configuration import ModelConfig
from router.core.types import ReplicaId
from router.serve.index_publisher import EventConnection


@dataclass(frozen=True, slots=True)
class Placement:
    """Who this replica is to routers, its way to the block index and to metrics; none of these
    outside of Serve.
    """

    replica_id: ReplicaId
    index: EventConnection | None = None
    gauges: Gauges | None = None


def is_in_ray() -> bool:
    import ray

    return bool(ray.is_initialized())


def placement(model: ModelConfig) -> Placement:
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
    return Placement(replica_id, NamedIndex(context.app_name, model.name), RayGauges())


def _alone() -> Placement:
    return Placement(ReplicaId(f"process-{os.getpid()}"))
