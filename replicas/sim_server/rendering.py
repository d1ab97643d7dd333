"""A client's JSON to prompts of token ids. Pure; `RequestRejected` (400) where it is at fault."""

import json
from typing import Any

from replicas.sim_server.words import mark, tokenize
from router.core.errors import NotFound, RequestRejected

Json = dict[str, Any]
Prompts = list[list[int]]


def parse_body(raw: bytes) -> Json:
    """The JSON object that `raw` must be."""
    try:
        body = json.loads(raw)
    except ValueError as error:
        raise RequestRejected("The request's body is not JSON.") from error
    if not isinstance(body, dict):
        raise RequestRejected("The request's body must be a JSON object.")
    return body


def check_model(body: Json, served: str) -> None:
    """Raises `NotFound` where the body names another model; none at all means this one."""
    name = body.get("model") or served
    if name != served:
        message = f"The model `{name}` does not exist."
        raise NotFound(message, param="model", code="model_not_found")


def chat_prompt(body: Json) -> list[int]:
    """Each message between marks; tools, where given, before them; then the answer's mark."""
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise RequestRejected("messages must be a list of messages.", param="messages")
    ids = [mark("<|begin|>")]
    if body.get("tools"):
        ids += tokenize(json.dumps(body["tools"], sort_keys=True))
    for message in messages:
        ids += _message(message)
    return [*ids, mark("<|assistant|>")] if body.get("add_generation_prompt", True) else ids


def completion_prompts(body: Json) -> Prompts:
    """One prompt of text or ids, or a list of them."""
    prompt = body.get("prompt")
    if isinstance(prompt, str):
        return [tokenize(prompt)]
    if isinstance(prompt, list) and _is_ids(prompt):
        return [prompt]
    if isinstance(prompt, list) and prompt:
        return [_single(one) for one in prompt]
    raise RequestRejected("prompt must be text, token ids or a list of these.", param="prompt")


def _single(prompt: object) -> list[int]:
    if isinstance(prompt, str):
        return tokenize(prompt)
    if isinstance(prompt, list) and _is_ids(prompt):
        return prompt
    raise RequestRejected("prompt must be text, token ids or a list of these.", param="prompt")


def _is_ids(values: list[object]) -> bool:
    return bool(values) and all(type(one) is int and 0 <= one < 2**32 for one in values)


def _message(message: object) -> list[int]:
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise RequestRejected("Each message must have a role.", param="messages")
    role = f"<|{message['role']}|>"
    return [mark(role), *tokenize(_text(message)), mark("<|end|>")]


def _text(message: Json) -> str:
    content = message.get("content")
    if isinstance(content, str):
        said = content
    elif content is None:
        said = ""
    elif isinstance(content, list):
        said = "".join(part.get("text", "") for part in content if isinstance(part, dict))
    else:
        raise RequestRejected("content must be text or a list of parts.", param="messages")
    calls = message.get("tool_calls")
    return said + json.dumps(calls, sort_keys=True) if calls else said
