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

from replicas.engines.protocol import EngineRequest, Route
from replicas.engines.vllm import failures
from replicas.engines.vllm.calls import (
    chat_call,
    completion_call,
    engine_request_ids,
    responses_call,
)
from replicas.engines.vllm.counting import CountingLLM, is_usage_event, with_cached_tokens

_BEFORE_ENGINE = frozenset({"response.created", "response.in_progress"})
"""Events of a response that vLLM writes before the engine has accepted the request."""


class OpenAiLayer:
    """One per engine. Raises errors of ours only where vLLM reports instead of raising."""

    def __init__(self, llm: CountingLLM, state: Any) -> None:
        self._llm = llm
        self._state = state

    @classmethod
    async def build(cls, llm: CountingLLM, arguments: Namespace) -> "OpenAiLayer":
        state = SimpleNamespace()
        await init_app_state(llm, state, arguments, await llm.get_supported_tasks())
        return cls(llm, state)

    async def answer(self, request: EngineRequest) -> AsyncGenerator[str, None]:
        """The body: whole server-sent events, or one JSON document."""
        result = await self._call(request)
        if isinstance(result, ErrorResponse):
            raise failures.from_response(result)
        if not request.is_stream:
            yield self._document(request, result)
            return
        async with aclosing(self._events(request, result)) as events:
            async for event in events:
                if error := failures.from_event(event):
                    raise error
                yield event

    def _document(self, request: EngineRequest, response: Any) -> str:
        cached_tokens = self._llm.cached_tokens(engine_request_ids(request))
        if cached_tokens is not None:
            response.usage.prompt_tokens_details.cached_tokens = cached_tokens
        return str(response.model_dump_json(by_alias=request.route is Route.RESPONSES))

    def _events(self, request: EngineRequest, events: Any) -> AsyncGenerator[str, None]:
        if request.route is Route.RESPONSES:
            return _response_events(events)
        return self._with_summed_usage(engine_request_ids(request), events)

    async def _with_summed_usage(
        self, request_ids: list[str], events: AsyncGenerator[str, None]
    ) -> AsyncGenerator[str, None]:
        async with aclosing(events):
            async for event in events:
                cached_tokens = None
                if is_usage_event(event):
                    cached_tokens = self._llm.cached_tokens(request_ids)
                yield event if cached_tokens is None else with_cached_tokens(event, cached_tokens)

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
