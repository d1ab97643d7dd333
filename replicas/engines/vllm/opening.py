"""How a vLLM engine comes to be: the environment first, then the import that reads it."""

from replicas.engines.protocol import Engine
from replicas.kv.connector.settings import ConnectorSettings
from router.configuration import ModelConfig


def open_engine(
    model: ModelConfig,
    connector: ConnectorSettings | None = None,
    *,
    exports_ray_metrics: bool = False,
) -> Engine:
    """An engine that is not yet started. Imports vLLM, which takes seconds."""
    from replicas.engines.vllm.environment import prepare_environment

    prepare_environment(model)
    from replicas.engines.vllm.engine import VllmEngine

    return VllmEngine(model, connector, exports_ray_metrics=exports_ray_metrics)
