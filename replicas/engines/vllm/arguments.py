"""From a `ModelConfig` to vLLM's own arguments, for the engine and for the ingress's renderer.

The same function serves both, so that what is rendered at the ingress is what the engine expects.
Nothing here starts an engine.
"""

import dataclasses
from argparse import Namespace
from difflib import get_close_matches
from functools import cache
from typing import Any

from pydantic import ConfigDict, TypeAdapter, ValidationError

from replicas.engines.vllm.environment import prepare_environment
from replicas.engines.vllm.tiny_model import ensure_tiny_model
from router.configuration import ModelConfig
from router.core.errors import ConfigurationError

HASH_ALGORITHM = "sha256_cbor"
"""Stable across processes and Python versions, unlike the default, which hashes pickles."""

OWNED: dict[str, str] = {
    "model": "set `source`",
    "tokenizer": "it comes with `source`",
    "served_model_name": "set `name`",
    "tensor_parallel_size": "set `tensor_parallel_size` of the model",
    "kv_cache_memory_bytes": "set `kv_cache_gib`",
    "reasoning_parser": "set `reasoning_parser` of the model",
    "enable_prefix_caching": "it is always on",
    "prefix_caching_hash_algo": f"it is always {HASH_ALGORITHM}",
    "kv_events_config": "each replica makes its own sockets",
    "kv_transfer_config": "each replica makes its own connector",
    "disable_log_stats": "the health check reads them",
    "enable_log_requests": "prompts are never logged",
    "data_parallel_size": "set `replicas`",
    "enable_prompt_embeds": "requests are token ids",
}
"""Engine arguments that Warmpath sets itself, each with what to do instead."""

FRONTEND_ARGUMENTS = frozenset(
    {
        "chat_template",
        "chat_template_content_format",
        "default_chat_template_kwargs",
        "response_role",
        "exclude_tools_when_tool_choice_none",
        "tool_strict_level",
    }
)
"""Arguments of vLLM's OpenAI layer that may stand among `engine_args`: they shape the prompt."""

_TINY_KV_CACHE_GIB = 0.5
_CPU_KV_CACHE_GIB = 4.0


def validate_engine_args(model: ModelConfig) -> None:
    """Raises `ConfigurationError` naming the first unknown, owned or wrongly typed argument."""
    if model.engine != "vllm":
        return
    for key, value in model.engine_args.items():
        path = f"models.{model.name}.engine_args.{key}"
        if key in OWNED:
            raise ConfigurationError(path, f"Warmpath sets this itself: {OWNED[key]}")
        _check_value(path, key, value)


def _check_value(path: str, key: str, value: object) -> None:
    prepare_environment()
    hints = _argument_types()
    if key not in hints:
        near = get_close_matches(key, hints, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise ConfigurationError(path, f"vLLM has no such engine argument{hint}")
    try:
        # vLLM turns mappings into its own classes; everything else must have the type as it is.
        _adapter(hints[key]).validate_python(value, strict=not isinstance(value, dict))
    except ValidationError as error:
        raise ConfigurationError(path, error.errors(include_input=False)[0]["msg"]) from error


def _adapter(hint: Any) -> TypeAdapter[Any]:
    """Dataclasses carry their own pydantic configuration; a second one would be refused."""
    if dataclasses.is_dataclass(hint):
        return TypeAdapter(hint)
    return TypeAdapter(hint, config=ConfigDict(arbitrary_types_allowed=True))


@cache
def _argument_types() -> dict[str, Any]:
    """Every argument that `engine_args` may name, with its type; Any where only vLLM knows it."""
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.entrypoints.launchers.cli_args import BaseFrontendArgs

    engine = dataclasses.fields(AsyncEngineArgs)
    frontend = [f for f in dataclasses.fields(BaseFrontendArgs) if f.name in FRONTEND_ARGUMENTS]
    return {f.name: Any if isinstance(f.type, str) else f.type for f in (*engine, *frontend)}


def vllm_arguments(model: ModelConfig, **overrides: object) -> Namespace:
    """What vLLM's `init_app_state` and `init_render_app_state` take as `args`.

    Later wins: vLLM's defaults, ours, the user's `engine_args`, what Warmpath owns, `overrides`.
    Makes the tiny model where `source` asks for it. Raises `ConfigurationError`.
    """
    prepare_environment(model)
    validate_engine_args(model)
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    defaults = vars(make_arg_parser(FlexibleArgumentParser()).parse_args([]))
    chosen = _defaults(model) | model.engine_args | _owned(model) | overrides
    return Namespace(**(defaults | chosen))


def _defaults(model: ModelConfig) -> dict[str, Any]:
    """What a user may override. Half of Serve's slots run, so that Serve's own queue is empty."""
    values: dict[str, Any] = {"max_num_seqs": max(1, model.max_ongoing_requests // 2)}
    if model.gpus_per_replica == 0:
        values["block_size"] = 32
    if model.source == "tiny":
        # Compiling four small layers costs half a minute and gains nothing measurable.
        values |= {"dtype": "float32", "enforce_eager": True}
    return values


def _owned(model: ModelConfig) -> dict[str, Any]:
    source = str(ensure_tiny_model()) if model.source == "tiny" else model.source
    values: dict[str, Any] = {
        "model": source,
        "served_model_name": [model.name],
        "enable_prefix_caching": True,
        "prefix_caching_hash_algo": HASH_ALGORITHM,
        "enable_prompt_tokens_details": True,
        "disable_log_stats": False,
        "enable_log_requests": False,
        "tool_call_parser": model.tool_call_parser,
        "enable_auto_tool_choice": model.tool_call_parser is not None,
        "reasoning_parser": model.reasoning_parser or "",
    }
    return values | _parallelism(model) | _kv_cache(model)


def _parallelism(model: ModelConfig) -> dict[str, Any]:
    """All ranks live in the replica's own placement group bundle, so on one node: processes."""
    values: dict[str, Any] = {"tensor_parallel_size": model.tensor_parallel_size}
    if model.tensor_parallel_size > 1 or model.gpus_per_replica > 1:
        values["distributed_executor_backend"] = "mp"
    if model.gpus_per_replica > model.tensor_parallel_size:
        stages = model.gpus_per_replica // model.tensor_parallel_size
        values["pipeline_parallel_size"] = stages
    return values


def _kv_cache(model: ModelConfig) -> dict[str, Any]:
    """On a GPU vLLM measures what is free; on a CPU it would take most of the machine."""
    gib = model.kv_cache_gib
    if gib is None and model.gpus_per_replica == 0:
        gib = _TINY_KV_CACHE_GIB if model.source == "tiny" else _CPU_KV_CACHE_GIB
    return {} if gib is None else {"kv_cache_memory_bytes": int(gib * 2**30)}
