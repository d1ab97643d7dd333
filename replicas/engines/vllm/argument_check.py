"""Which engine arguments a user may write, and whether they are right. Starts no engine."""

import dataclasses
from difflib import get_close_matches
from functools import cache
from typing import Any

from pydantic import ConfigDict, TypeAdapter, ValidationError

from replicas.engines.vllm.environment import prepare_environment
from router.configuration import ModelConfig
from router.core.errors import ConfigurationError

OWNED: dict[str, str] = {
    "model": "set `source`",
    "tokenizer": "it comes with `source`",
    "served_model_name": "set `name`",
    "tensor_parallel_size": "set `tensor_parallel_size` of the model",
    "kv_cache_memory_bytes": "set `kv_cache_gib`",
    "reasoning_parser": "set `reasoning_parser` of the model",
    "enable_prefix_caching": "it is always on",
    "prefix_caching_hash_algo": "it is always sha256_cbor",
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


def validate_engine_args(model: ModelConfig) -> None:
    """Raises `ConfigurationError` naming the first unknown, owned or wrongly typed argument."""
    if model.engine != "vllm":
        return
    for key in model.engine_args:
        if key in OWNED:
            raise ConfigurationError(_path(model, key), f"Warmpath sets this itself: {OWNED[key]}")
    converted(model, model.engine_args)


def converted(model: ModelConfig, values: dict[str, Any]) -> dict[str, Any]:
    """The same arguments, with mappings as the classes that vLLM makes of them."""
    return {key: _converted(_path(model, key), key, value) for key, value in values.items()}


def _path(model: ModelConfig, key: str) -> str:
    return f"models.{model.name}.engine_args.{key}"


def _converted(path: str, key: str, value: object) -> object:
    prepare_environment()
    types = _argument_types()
    if key not in types:
        near = get_close_matches(key, types, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise ConfigurationError(path, f"vLLM has no such engine argument{hint}")
    try:
        # A mapping is made into the class; everything else must have the type as it is.
        return _adapter(types[key]).validate_python(value, strict=not isinstance(value, dict))
    except ValidationError as error:
        message = error.errors(include_input=False)[0]["msg"].removeprefix("Value error, ")
        raise ConfigurationError(path, message) from error


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
