"""From the configuration's word for the timing to the model of it."""

from pathlib import Path

from replicas.sim.latency import DynamoLatency, FittedLatency, LatencyModel, LinearLatency
from router.configuration import SimConfig
from router.core.errors import ConfigurationError


def latency_of(config: SimConfig) -> LatencyModel:
    """Raises `ConfigurationError` where `timing` names no profile that can be read."""
    if config.timing == "linear":
        return LinearLatency(
            config.prefill_ms_per_token, config.prefill_base_ms, config.decode_ms_per_token
        )
    if config.timing == "dynamo":
        return DynamoLatency(config.total_blocks * config.block_size)
    return read_profile(Path(config.timing))


def read_profile(path: Path) -> FittedLatency:
    """A profile that `scripts/profile_engine` wrote."""
    try:
        return FittedLatency.from_json(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ConfigurationError("sim.timing", f"is no profile: {error}") from error
