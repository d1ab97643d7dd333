"""vLLM's own OpenAI serving classes, run on already rendered token ids.

They bring every OpenAI feature of vLLM: tools, reasoning, log probabilities, structured output.
This module knows their calling conventions and nothing of health or lifetime.
"""

from argparse import Namespace
from collections.abc import AsyncGenerator
from contextlib import aclosing
from types import SimpleNamespace
from typing import Any

from vllm.entrypoints.launchers.api_server.app_state import init_app_state
from vllm.entrypoints.serve.engine.protocol import ErrorResponse
from vllm.v1.engine.async_llm import AsyncLLM

from replicas.engines.protocol import EngineRequest, Route
from replicas.engines.vllm import failures
from replicas.engines.vllm.calls import chat_call, completion_call, responses_call

_BEFORE_ENGINE = frozenset({"response.created", "response.in_progress"})
"""Events of a response that vLLM writes before the engine has accepted the request."""


class OpenAiLayer:
    """One per engine. Raises errors of ours only where vLLM reports instead of raising."""

    def __init__(self, state: Any) -> None:
        self._state = state

    @classmethod
    async def build(cls, llm: AsyncLLM, arguments: Namespace) -> "OpenAiLayer":
        state = SimpleNamespace()
        await init_app_state(llm, state, arguments, await llm.get_supported_tasks())
        return cls(state)

    async def answer(self, request: EngineRequest) -> AsyncGenerator[str, None]:
        """The body: whole server-sent events, or one JSON document."""
        result = await self._call(request)
        if isinstance(result, ErrorResponse):
            raise failures.from_response(result)
        if not request.is_stream:
            yield result.model_dump_json(by_alias=request.route is Route.RESPONSES)
            return
        events = _response_events(result) if request.route is Route.RESPONSES else result
        async with aclosing(events):
            async for event in events:
                if error := failures.from_event(event):
                    raise error
                yield event

    async def _call(self, request: EngineRequest) -> Any:
        match request.route:
            case Route.CHAT:
                return await self._state.openai_serving_chat.create_chat_completion(
                    chat_call(request)
                )
            case Route.COMPLETIONS:
                return await self._state.openai_serving_completion.create_completion(
                    completion_call(request)
                )
            case Route.RESPONSES:
                return await self._state.openai_serving_responses.create_responses(
                    responses_call(request)
                )


async def _response_events(events: AsyncGenerator[Any, None]) -> AsyncGenerator[str, None]:
    """Server-sent events; the first wait for the engine, so that a refusal can still be a 4xx."""
    held = ""
    async with aclosing(events):
        async for event in events:
            data = event.model_dump_json(by_alias=True)
            held += f"event: {event.type}\ndata: {data}\n\n"
            if event.type not in _BEFORE_ENGINE:
                yield held
                held = ""
