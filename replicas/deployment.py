"""A model's replicas as a Serve deployment: names, sizes, resources, health and shutdown."""

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from replicas.serve_flags import SERVE_FLAGS, serve_flags
from replicas.server import LLMServer
from router.configuration import ModelConfig, ScaleConfig
from router.kv_store_config import KvStoreConfig

if TYPE_CHECKING:
    from ray.serve import Application

HEALTH_CHECK_PERIOD_S = 5.0
HEALTH_CHECK_MARGIN_S = 5.0
"""Serve's deadline is later than the engine's own, so that the engine can say what is wrong."""
DRAIN_TIMEOUT_S = 60.0
"""How long a stopping replica may finish what it streams."""
REQUEST_ROUTER = {
    "request_router_class": "router.serve.request_router:DecisionRouter",
    "max_backoff_s": 0.1,  # a freed slot is to be noticed soon
}
"""Serve pickles it into every change of the deployment: what may be tuned is elsewhere."""


class ServeReplica(LLMServer):
    """An `LLMServer` that ends with its replica."""

    async def __del__(self) -> None:
        """Serve awaits this after the replica has drained, before it ends the process."""
        await self.shutdown()


def build_deployment(
    model: ModelConfig, kv_store: KvStoreConfig | None = None, *, max_queued_requests: int = -1
) -> "Application":
    """The Serve application node of one model, to be bound into the ingress.

    `max_queued_requests` bounds what one ingress lets wait for a free replica; -1 is no bound.
    """
    from ray import serve

    options = deployment_options(model, serve_flags(os.environ))
    deployment = serve.deployment(**options, max_queued_requests=max_queued_requests)
    return deployment(ServeReplica).bind(
        model.model_dump(), (kv_store or KvStoreConfig()).model_dump()
    )


def deployment_name(model: ModelConfig) -> str:
    """Serve uses names in paths and metrics; a model's name may hold slashes."""
    return f"llm-{model.name.replace('/', '--')}"


def deployment_options(
    model: ModelConfig, flags: Mapping[str, str] = SERVE_FLAGS
) -> dict[str, Any]:
    """The arguments of `serve.deployment`; `flags` are Serve's own, see `serve_flags`. Pure.

    A replica with GPUs is one placement group with one bundle: all ranks of its engine are child
    processes of the replica, on one node, and see just the GPUs of that bundle.
    """
    resources = {
        "num_cpus": model.cpus_per_replica,
        "num_gpus": model.gpus_per_replica,
        "runtime_env": {"env_vars": dict(flags)},
    }
    options: dict[str, Any] = {
        "name": deployment_name(model),
        "max_ongoing_requests": model.max_ongoing_requests,
        "ray_actor_options": resources,
        "health_check_period_s": HEALTH_CHECK_PERIOD_S,
        "health_check_timeout_s": model.health_check_timeout_s + HEALTH_CHECK_MARGIN_S,
        "graceful_shutdown_timeout_s": DRAIN_TIMEOUT_S,
        "request_router_config": dict(REQUEST_ROUTER),
    }
    return options | _replica_count(model) | _placement(model)


def _replica_count(model: ModelConfig) -> dict[str, Any]:
    if model.autoscaling is None:
        return {"num_replicas": model.replicas or 1}
    return {"autoscaling_config": _autoscaling(model.autoscaling)}


def _autoscaling(scale: ScaleConfig) -> dict[str, Any]:
    return {
        "min_replicas": scale.min_replicas,
        "max_replicas": scale.max_replicas,
        "target_ongoing_requests": scale.target_ongoing_requests,
        "upscale_delay_s": scale.upscale_delay_s,
        "downscale_delay_s": scale.downscale_delay_s,
    }


def _placement(model: ModelConfig) -> dict[str, Any]:
    if model.gpus_per_replica < 2:
        return {}
    bundle = {"CPU": model.cpus_per_replica, "GPU": float(model.gpus_per_replica)}
    return {"placement_group_bundles": [bundle], "placement_group_strategy": "STRICT_PACK"}
