"""What a user may write under `args` in a Serve config, validated once at start.

Defaults live here and nowhere else. Every model refuses unknown keys, so that a misspelt key dies
with its name. Each component receives only its own frozen section.
"""

from difflib import get_close_matches
from typing import Annotated, Any, Literal

from pydantic import Field, JsonValue, StringConstraints, ValidationError, model_validator

from router.config_section import Section
from router.core.errors import ConfigurationError
from router.kv_store_config import KvStoreConfig
from router.policies.registry import DEFAULT_POLICY
from router.rules import WorkloadRule

Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]{0,127}$")]
"""A model's public name: what clients send as `model`."""


class SimConfig(Section):
    """The simulated engine: a block pool and a latency model, no weights.

    `timing`: `linear` (the three keys in milliseconds below), `dynamo` (the formulas of NVIDIA
    Dynamo's mocker), or the path of a profile that `scripts/profile_engine` wrote.
    """

    total_blocks: int = Field(2048, ge=2)
    block_size: int = Field(32, ge=1)
    max_model_len: int = Field(32768, ge=2)
    max_num_seqs: int = Field(64, ge=1)
    max_num_batched_tokens: int = Field(8192, ge=1)
    timing: str = Field("linear", min_length=1)
    prefill_ms_per_token: float = Field(0.1, ge=0)
    prefill_base_ms: float = Field(2.0, ge=0)
    decode_ms_per_token: float = Field(5.0, ge=0)
    default_max_tokens: int = Field(16, ge=1)


class ScaleConfig(Section):
    """Serve's autoscaling of one model's replicas."""

    min_replicas: int = Field(1, ge=0)
    max_replicas: int = Field(1, ge=1)
    target_ongoing_requests: float = Field(16, gt=0)
    upscale_delay_s: float = Field(10, ge=0)
    downscale_delay_s: float = Field(300, ge=0)

    @model_validator(mode="after")
    def _ordered(self) -> "ScaleConfig":
        if self.min_replicas > self.max_replicas:
            raise ValueError("min_replicas is above max_replicas")
        return self


class ModelConfig(Section):
    """One served model and the replicas behind it.

    `source` is `tiny` (the seeded test model), a local path or a Hugging Face repository.
    `engine_args` are vLLM's own engine arguments by their Python names; those that Warmpath sets
    itself are refused by the engine at start.
    """

    name: Name
    engine: Literal["vllm", "sim"] = "vllm"
    source: str = Field("tiny", min_length=1)
    replicas: int | None = Field(None, ge=1)
    autoscaling: ScaleConfig | None = None
    gpus_per_replica: int = Field(0, ge=0)
    tensor_parallel_size: int = Field(1, ge=1)
    cpus_per_replica: float = Field(1.0, ge=0)
    kv_cache_gib: float | None = Field(None, gt=0)
    max_ongoing_requests: int = Field(128, ge=1)
    engine_args: dict[str, Any] = Field(default_factory=dict)
    tool_call_parser: str | None = None
    reasoning_parser: str | None = None
    health_check_timeout_s: float = Field(30, gt=0)
    sim: SimConfig | None = None

    @model_validator(mode="after")
    def _consistent(self) -> "ModelConfig":
        if self.replicas is not None and self.autoscaling is not None:
            raise ValueError("replicas and autoscaling exclude each other")
        if self.sim is not None and self.engine != "sim":
            raise ValueError("sim is given, but engine is not 'sim'")
        if self.gpus_per_replica and self.gpus_per_replica % self.tensor_parallel_size:
            raise ValueError("gpus_per_replica is no multiple of tensor_parallel_size")
        return self


class IngressConfig(Section):
    """The HTTP front. Sizes are of the request body; waiting requests are per ingress replica."""

    replicas: int = Field(1, ge=1)
    cpus_per_replica: float = Field(0.5, ge=0)
    render_workers: int = Field(2, ge=1)
    max_body_bytes: int = Field(8 * 1024 * 1024, ge=1024)
    max_ongoing_requests: int = Field(1024, ge=1)
    max_queued_requests: int = Field(256, ge=1)
    retry_after_s: int = Field(1, ge=1)
    first_token_timeout_s: float = Field(600, gt=0)


class AuthConfig(Section):
    """Where API keys come from. With neither, everyone is one anonymous tenant.

    `keys_file` has one `tenant:sha256-of-key` a line, made by `warmpath keys add`; `keys_env` names
    an environment variable with the same lines. `secret_file` holds the server secret of which
    tenants' cache salts are made, unless `WARMPATH_SECRET` is set; it must be the same everywhere.
    """

    keys_file: str | None = None
    keys_env: str | None = None
    secret_file: str | None = None


class IndexConfig(Section):
    """The block index of each model. Caps bound its memory; times are in seconds.

    A replica silent for `stale_after_s` is no candidate, for `forget_after_s` it is forgotten.
    """

    max_replicas: int = Field(512, ge=1)
    max_blocks: int = Field(4_000_000, ge=1024)
    max_bookings: int = Field(65_536, ge=64)
    speculative_ttl_s: float = Field(30.0, gt=0)
    stale_after_s: float = Field(5.0, gt=0)
    forget_after_s: float = Field(30.0, gt=0)

    @model_validator(mode="after")
    def _ordered(self) -> "IndexConfig":
        if self.stale_after_s > self.forget_after_s:
            raise ValueError("stale_after_s is above forget_after_s")
        return self


class ContextsConfig(Section):
    """Conversations kept on the server. Times are in seconds; the TTL's limits are whole ones.

    `journal` is where they are kept: the path of a SQLite file on the cluster's head node, or a
    `redis://` URL; by default a file below `$XDG_STATE_HOME` (`~/.local/state`). A turn's lease
    ends `lease_s` after its last renewal. `max_tokens_per_tenant` counts a fork's whole history;
    `max_bytes` bounds all histories in memory, which share what forks have in common.
    """

    enabled: bool = True
    journal: str | None = Field(None, min_length=1)
    default_ttl_s: int = Field(3600, ge=1)
    min_ttl_s: int = Field(1, ge=1)
    max_ttl_s: int = Field(604_800, ge=1)
    lease_s: float = Field(10.0, gt=0)
    max_wait_s: float = Field(60.0, ge=0)
    save_timeout_s: float = Field(5.0, gt=0)
    max_contexts_per_tenant: int = Field(10_000, ge=1)
    max_tokens_per_tenant: int = Field(67_108_864, ge=1)
    max_contexts: int = Field(200_000, ge=1)
    max_bytes: int = Field(4 * 1024**3, ge=1024**2)

    @model_validator(mode="after")
    def _ordered(self) -> "ContextsConfig":
        if not self.min_ttl_s <= self.default_ttl_s <= self.max_ttl_s:
            raise ValueError("default_ttl_s is not between min_ttl_s and max_ttl_s")
        return self


class AppConfig(Section):
    """The whole of `args`."""

    models: list[ModelConfig] = Field(min_length=1)
    ingress: IngressConfig = IngressConfig()
    auth: AuthConfig = AuthConfig()
    index: IndexConfig = IndexConfig()
    contexts: ContextsConfig = ContextsConfig()
    kv_store: KvStoreConfig = KvStoreConfig()

    @model_validator(mode="after")
    def _unique_names(self) -> "AppConfig":
        names = [model.name for model in self.models]
        doubled = sorted({name for name in names if names.count(name) > 1})
        if doubled:
            raise ValueError(f"models: the name {doubled[0]!r} is given twice")
        return self


class RoutingConfig(Section):
    """The ingress's `user_config`: what may change while the application runs.

    Requests that no rule matches go by `policy` with `parameters`. `index_deadline_ms` is how long
    a request waits for the block index; after `index_misses_to_open` missed deadlines in a row the
    ingress decides alone and probes the index every `index_probe_interval_s`. `session_from` are
    header names, or `user` for that field of the body: the first that a request has is its session.
    `access_log` is true, false, or `trace`: only what a replay needs, with keyed hashes of prompts.
    """

    policy: str = DEFAULT_POLICY
    parameters: dict[str, JsonValue] = Field(default_factory=dict)
    rules: list[WorkloadRule] = Field(default_factory=list)
    session_from: list[str] = Field(default=["x-session-id"], max_length=8)
    index_deadline_ms: float = Field(20.0, gt=0)
    index_misses_to_open: int = Field(3, ge=1)
    index_probe_interval_s: float = Field(1.0, gt=0)
    expose_decisions: bool = False
    access_log: bool | Literal["trace"] = True


def parse_config(raw: object) -> AppConfig:
    """The configuration that `raw`, the parsed YAML under `args`, describes.

    Raises `ConfigurationError` with the path of the first offending key, such as
    `models[0].replicas`.
    """
    try:
        return AppConfig.model_validate(raw)
    except ValidationError as error:
        raise configuration_error(error) from error


def configuration_error(error: ValidationError, root: str = "args") -> ConfigurationError:
    """The first of pydantic's findings, as the error that ends the start; `root` names level 0."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    location = first["loc"]
    message = first["msg"].removeprefix("Value error, ")
    if first["type"] == "extra_forbidden":
        message = _unknown_key(str(location[-1]))
    return ConfigurationError(_dotted(location) or root, message)


def _dotted(location: tuple[int | str, ...]) -> str:
    parts = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in location)
    return "".join(parts).removeprefix(".")


def _unknown_key(key: str) -> str:
    known = {name for section in Section.__subclasses__() for name in section.model_fields}
    close = get_close_matches(key, known, n=1)
    return f"unknown key; did you mean {close[0]!r}?" if close else "unknown key"
