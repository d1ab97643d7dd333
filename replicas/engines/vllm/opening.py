"""How a vLLM engine comes to be: the environment first, then the import that reads it."""

from replicas.engines.protocol import Engine
from router.configuration import ModelConfig


def open_engine(model: ModelConfig, *, exports_ray_metrics: bool = False) -> Engine:
    """An engine that is not yet started. Imports vLLM, which takes seconds."""
    from replicas.engines.vllm.environment import prepare_environment

    prepare_environment(model)
    from replicas.engines.vllm.engine import VllmEngine

    return VllmEngine(model, exports_ray_metrics=exports_ray_metrics)
