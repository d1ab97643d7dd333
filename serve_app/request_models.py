"""vLLM's request models as a gate: what passes them is what a replica's engine will accept.

Lists fail fast here. A list of many broken items would otherwise cost seconds, all of them with the
interpreter's lock held, for one finding per item and per type that the item could have been.
"""

from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError
from vllm.entrypoints.openai.chat_completion.protocol import (
    ChatCompletionRequest,
    ChatCompletionToolsParam,
)
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.entrypoints.openai.responses.protocol import ResponseInputOutputItem, ResponsesRequest
from vllm.entrypoints.serve.tokenize.protocol import TokenizeChatRequest, TokenizeCompletionRequest
from vllm.exceptions import VLLMClientError, VLLMValidationError
from vllm.renderers.chat_utils import ChatCompletionMessageParam

from router.core.errors import InvalidRequest
from serve_app.allow_list import ApiRoute, Json

MAX_ITEMS = 2048
"""Elements of a list or object at the top level; OpenAI's own limit for messages."""
MAX_TOKEN_ITEMS = 131_072
"""Elements of a list or object that is keyed by token ids."""
MAX_PROMPTS = 1024

_TOKEN_FIELDS = frozenset({"allowed_token_ids", "logit_bias"})
_TOO_LONG = frozenset({"input_tokens", "input_text"})
_PROMPT_FIELDS = {ApiRoute.CHAT: "messages", ApiRoute.RESPONSES: "input"}
_TokenIds = Annotated[list[Annotated[int, Field(ge=0)]], Field(fail_fast=True)]


class _Chat(ChatCompletionRequest):
    messages: Annotated[list[ChatCompletionMessageParam], Field(fail_fast=True)]
    tools: Annotated[list[ChatCompletionToolsParam], Field(fail_fast=True)] | None = None


class _Completion(CompletionRequest):
    prompt: (
        _TokenIds
        | Annotated[list[_TokenIds], Field(fail_fast=True)]
        | str
        | Annotated[list[str], Field(fail_fast=True)]
        | None
    ) = None


class _Responses(ResponsesRequest):
    input: str | Annotated[list[ResponseInputOutputItem], Field(fail_fast=True)]


_MODELS: dict[ApiRoute, TypeAdapter[Any]] = {
    ApiRoute.CHAT: TypeAdapter(_Chat),
    ApiRoute.COMPLETIONS: TypeAdapter(_Completion),
    ApiRoute.RESPONSES: TypeAdapter(_Responses),
    ApiRoute.TOKENIZE: TypeAdapter(TokenizeCompletionRequest),
}
_TOKENIZE_CHAT: TypeAdapter[Any] = TypeAdapter(TokenizeChatRequest)
_BUDGETS = {
    ApiRoute.CHAT: ("max_completion_tokens", "max_tokens"),
    ApiRoute.COMPLETIONS: ("max_tokens",),
    ApiRoute.RESPONSES: ("max_output_tokens",),
}


def budget(route: ApiRoute, body: Json) -> tuple[str, int | None]:
    """The field that limits the answer's tokens, and its value where the client gave one."""
    names = _BUDGETS[route]
    for name in names:
        if isinstance(value := body.get(name), int):
            return name, value
    return names[0], None


def validated(route: ApiRoute, body: Json, max_model_len: int) -> Any:
    """vLLM's request object for `body`, which it may normalise in place.

    Raises `InvalidRequest`, with nothing in it that the client wrote.
    """
    _check_sizes(body, max_model_len)
    is_chat = route is ApiRoute.TOKENIZE and "messages" in body
    try:
        request = (_TOKENIZE_CHAT if is_chat else _MODELS[route]).validate_python(body)
        if route in _BUDGETS:
            _check_sampling(request, budget(route, body)[1])
    except ValidationError as error:
        raise _first_finding(error) from error
    except VLLMClientError as error:
        raise invalid(route, error) from error
    except (ValueError, TypeError, AttributeError, KeyError, RecursionError) as error:
        # A validator that trips over a wrong type, before pydantic could name it.
        raise InvalidRequest("A field of the body has the wrong type.") from error
    return request


def invalid(route: ApiRoute, error: Exception) -> InvalidRequest:
    """vLLM's complaint without the values that it quotes."""
    message, param = str(error.args[0]) if error.args else "", None
    if isinstance(error, VLLMValidationError):
        param = error.parameter
        if error.value is not None and not isinstance(error.value, int | float):
            message = f"Invalid value for '{param}'."
    if param in _TOO_LONG:
        param = _PROMPT_FIELDS.get(route, "prompt")
        return InvalidRequest(message, param=param, code="context_length_exceeded")
    return InvalidRequest(message.partition("{")[0] or "The request is invalid.", param=param)


def _check_sizes(body: Json, max_model_len: int) -> None:
    for name, value in body.items():
        if isinstance(value, list | dict) and name != "prompt":
            limit = MAX_TOKEN_ITEMS if name in _TOKEN_FIELDS else MAX_ITEMS
            if len(value) > limit:
                raise InvalidRequest(f"'{name}' has more than {limit} elements.", param=name)
    prompt = body.get("prompt")
    if isinstance(prompt, list):
        _check_prompt_sizes(prompt, max_model_len)


def _check_prompt_sizes(prompt: list[object], max_model_len: int) -> None:
    prompts = [prompt] if prompt and isinstance(prompt[0], int) else prompt
    if len(prompts) > MAX_PROMPTS:
        raise InvalidRequest(f"'prompt' has more than {MAX_PROMPTS} prompts.", param="prompt")
    longest = max((len(item) for item in prompts if isinstance(item, list)), default=0)
    if longest > max_model_len:
        raise InvalidRequest(
            f"This model's maximum context length is {max_model_len} tokens, but a prompt has"
            f" {longest}.",
            param="prompt",
            code="context_length_exceeded",
        )


def _check_sampling(request: Any, max_tokens: int | None) -> None:
    """Finds what only the making of sampling parameters finds, such as `n: 0`."""
    request.to_sampling_params(1 if max_tokens is None else max_tokens, {})


def _first_finding(error: ValidationError) -> InvalidRequest:
    findings = error.errors(include_url=False, include_context=False, include_input=False)
    location = findings[0]["loc"]
    param = str(location[0]) if location else None
    if len(findings) > 1 or findings[0]["type"] == "value_error":
        return InvalidRequest(f"Invalid value for '{param}'.", param=param)
    place = ".".join(str(step) for step in location if isinstance(step, int) or step == param)
    return InvalidRequest(f"Invalid value for '{place}': {findings[0]['msg']}.", param=param)
