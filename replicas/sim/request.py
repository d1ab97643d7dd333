"""What a client asked for, as the simulated engine understands it. Refuses what vLLM refuses."""

from dataclasses import dataclass

import msgspec

from replicas.engines.protocol import EngineRequest, Route
from router.core.errors import RequestRejected

MAX_CHOICES = 128


class _StreamOptions(msgspec.Struct):
    include_usage: bool | None = False
    continuous_usage_stats: bool | None = False


class _Body(msgspec.Struct):
    """The fields that change what is simulated; all others are accepted and ignored."""

    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    max_output_tokens: int | None = None
    n: int | None = 1
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool = False
    seed: int | None = None
    temperature: float | None = None
    logprobs: bool | int | None = None
    top_logprobs: int | None = 0
    echo: bool | None = False
    prompt: msgspec.Raw = msgspec.Raw(b"null")
    stream_options: _StreamOptions | None = None


@dataclass(frozen=True, slots=True)
class GenerationParams:
    """One request's parameters.

    `max_tokens` is `None` where the client named none: the engine then stops by itself.
    `top_logprobs` is `None` where no logprobs are wanted. `echo_texts` has one text a prompt where
    the client sent text, and is empty where it sent ids.
    """

    max_tokens: int | None
    choices: int
    stop: tuple[str, ...]
    stop_token_ids: frozenset[int]
    is_stop_shown: bool
    seed: int | None
    temperature: float
    top_logprobs: int | None
    is_echo: bool
    echo_texts: tuple[str, ...]
    is_usage_shown: bool
    is_usage_continuous: bool


def parse_params(request: EngineRequest) -> GenerationParams:
    """Reads the body; `RequestRejected` (400) where a value is of the wrong type or range."""
    try:
        body = msgspec.json.decode(request.body, type=_Body)
        echo_texts = _texts(body.prompt) if body.echo else ()
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RequestRejected("The request's body is malformed.") from error
    choices = _checked_choices(body)
    _check_max_tokens(_max_tokens(body))
    options = body.stream_options or _StreamOptions()
    return GenerationParams(
        max_tokens=_max_tokens(body),
        choices=choices,
        stop=_stop(body),
        stop_token_ids=frozenset(body.stop_token_ids or ()),
        is_stop_shown=body.include_stop_str_in_output,
        seed=body.seed,
        temperature=1.0 if body.temperature is None else body.temperature,
        top_logprobs=_top_logprobs(request.route, body),
        is_echo=bool(body.echo) and request.route is Route.COMPLETIONS,
        echo_texts=echo_texts,
        is_usage_shown=bool(options.include_usage),
        is_usage_continuous=bool(options.include_usage and options.continuous_usage_stats),
    )


def check_length(prompt_tokens: int, params: GenerationParams, max_model_len: int) -> None:
    """`RequestRejected` where prompt and answer exceed the context length."""
    if prompt_tokens == 0:
        raise RequestRejected("The decoder prompt cannot be empty", param="prompt")
    limit = f"This model's maximum context length is {max_model_len} tokens."
    remedy = "Please reduce the length of the input prompt."
    if prompt_tokens >= max_model_len:
        raise RequestRejected(
            f"{limit} However, your prompt contains {prompt_tokens} input tokens, which exceeds "
            f"this limit even without any output tokens. {remedy}",
            param="input_tokens",
            code="context_length_exceeded",
        )
    if prompt_tokens + (params.max_tokens or 1) > max_model_len:
        raise RequestRejected(
            f"{limit} However, you requested {params.max_tokens} output tokens and your prompt "
            f"contains {prompt_tokens} input tokens. {remedy}",
            param="max_tokens",
            code="context_length_exceeded",
        )


def _checked_choices(body: _Body) -> int:
    choices = 1 if body.n is None else body.n
    if not 1 <= choices <= MAX_CHOICES:
        message = f"n must be at least 1 and at most {MAX_CHOICES}, got {choices}."
        raise RequestRejected(message, param="n")
    if choices > 1 and body.temperature == 0:
        message = f"n must be 1 when using greedy sampling, got {choices}."
        raise RequestRejected(message, param="n")
    return choices


def _max_tokens(body: _Body) -> int | None:
    for limit in (body.max_completion_tokens, body.max_output_tokens, body.max_tokens):
        if limit is not None:
            return limit
    return None


def _check_max_tokens(max_tokens: int | None) -> None:
    if max_tokens is not None and max_tokens < 1:
        message = f"max_tokens must be at least 1, got {max_tokens}."
        raise RequestRejected(message, param="max_tokens")


def _stop(body: _Body) -> tuple[str, ...]:
    stop = [body.stop] if isinstance(body.stop, str) else body.stop or []
    if not all(stop):
        raise RequestRejected("stop cannot contain an empty string.", param="stop")
    return tuple(stop)


def _top_logprobs(route: Route, body: _Body) -> int | None:
    """Chat says yes or no and how many beside; completions say how many."""
    if route is Route.CHAT:
        return (body.top_logprobs or 0) if body.logprobs else None
    if body.logprobs is None or isinstance(body.logprobs, bool):
        return None
    return body.logprobs


def _texts(prompt: msgspec.Raw) -> tuple[str, ...]:
    value = msgspec.json.decode(prompt)
    values = value if isinstance(value, list) else [value]
    return tuple(text for text in values if isinstance(text, str))
