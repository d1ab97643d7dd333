"""From a `ModelConfig` to vLLM's own arguments, for the engine and for the ingress's renderer.

The same function serves both, so that what is rendered at the ingress is what the engine expects.
Nothing here starts an engine.
"""

from argparse import Namespace
from typing import Any

from replicas.engines.vllm.argument_check import converted, validate_engine_args
from replicas.engines.vllm.environment import prepare_environment
from replicas.engines.vllm.tiny_model import ensure_tiny_model
from router.configuration import ModelConfig

__all__ = ["HASH_ALGORITHM", "validate_engine_args", "vllm_arguments"]

HASH_ALGORITHM = "sha256_cbor"
"""Stable across processes and Python versions, unlike the default, which hashes pickles."""

_TINY_DEFAULTS: dict[str, Any] = {
    "dtype": "float32",
    # Compiling four small layers costs up to half a minute of a start.
    "enforce_eager": True,
    # A random model would fill a JSON answer with whitespace until its tokens run out.
    "structured_outputs_config": {"backend": "xgrammar", "disable_any_whitespace": True},
}
_TINY_KV_CACHE_GIB = 0.5
_CPU_KV_CACHE_GIB = 4.0


def vllm_arguments(model: ModelConfig, **overrides: object) -> Namespace:
    """What vLLM's `init_app_state` and `init_render_app_state` take as `args`.

    Later wins: vLLM's defaults, ours, the user's `engine_args`, what Warmpath owns, `overrides`.
    Makes the tiny model where `source` asks for it. Raises `ConfigurationError`.
    """
    prepare_environment(model)
    validate_engine_args(model)
    chosen = converted(model, _defaults(model) | model.engine_args)
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    defaults = vars(make_arg_parser(FlexibleArgumentParser()).parse_args([]))
    return Namespace(**(defaults | chosen | _owned(model) | overrides))


def _defaults(model: ModelConfig) -> dict[str, Any]:
    """What a user may override. Half of Serve's slots run, so that Serve's own queue is empty."""
    values: dict[str, Any] = {"max_num_seqs": max(1, model.max_ongoing_requests // 2)}
    if model.gpus_per_replica == 0:
        values["block_size"] = 32
    if model.source == "tiny":
        values |= _TINY_DEFAULTS
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
