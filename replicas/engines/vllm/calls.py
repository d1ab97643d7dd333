"""From an `EngineRequest` to the request objects of vLLM's OpenAI layer.

Prompts go in as token ids, where vLLM takes them: in `kv_transfer_params` for chat and responses
(its renderer takes them out again), as `prompt` for completions. What is left in
`kv_transfer_params` is for our KV connector, and only there where there is one. The client's own
values of these fields never survive.
"""

import json
from typing import Any

import numpy as np
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.entrypoints.openai.responses.protocol import ResponsesRequest

from replicas.engines.protocol import EngineRequest, Route
from replicas.kv.connector.messages import PARAMETER, encode_request


def unpack(prompt: bytes) -> list[int]:
    """Token ids of a packed prompt (little-endian u32)."""
    ids: list[int] = np.frombuffer(prompt, dtype="<u4").tolist()
    return ids


def chat_call(request: EngineRequest) -> ChatCompletionRequest:
    fields = _fields(request) | {"request_id": request.request_id}
    return ChatCompletionRequest.model_validate(fields | _rendered(request))


def completion_call(request: EngineRequest) -> CompletionRequest:
    fields = _fields(request) | {"request_id": request.request_id}
    if not request.needs_render:
        fields["prompt"] = [unpack(prompt) for prompt in request.prompts]
    if request.transfer is not None:
        fields["kv_transfer_params"] = _transfer(request)
    return CompletionRequest.model_validate(fields)


def responses_call(request: EngineRequest) -> ResponsesRequest:
    fields = _fields(request) | {"request_id": f"resp_{request.request_id}", "store": False}
    return ResponsesRequest.model_validate(fields | _rendered(request))


def engine_request_ids(request: EngineRequest) -> list[str]:
    """Under which ids vLLM's serving classes hand the request to the engine."""
    match request.route:
        case Route.CHAT:
            return [f"chatcmpl-{request.request_id}"]
        case Route.RESPONSES:
            return [f"resp_{request.request_id}_0"]
        case Route.COMPLETIONS:
            count = max(1, len(request.prompts))
            return [f"cmpl-{request.request_id}-{index}" for index in range(count)]


def _fields(request: EngineRequest) -> dict[str, Any]:
    fields: dict[str, Any] = json.loads(request.body)
    fields |= {"stream": request.is_stream, "cache_salt": request.cache_salt}
    for key in ("kv_transfer_params", "ec_transfer_params", "request_id", "session_id"):
        fields.pop(key, None)
    return fields


def _rendered(request: EngineRequest) -> dict[str, Any]:
    if request.needs_render:
        return {}
    (prompt,) = request.prompts
    return {"kv_transfer_params": {"prompt_token_ids": unpack(prompt)} | _transfer(request)}


def _transfer(request: EngineRequest) -> dict[str, Any]:
    return {} if request.transfer is None else {PARAMETER: encode_request(request.transfer)}
