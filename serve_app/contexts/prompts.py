"""The prompt of a turn: the stored ids and what the turn adds to them."""

from typing import Any, Protocol

import numpy as np

from router.contexts.messages import TOKEN_BYTES
from router.core.errors import InvalidRequest
from serve_app.admission import PromptRenderer
from serve_app.allow_list import ApiRoute, Json
from serve_app.contexts.document import Document


class TurnRenderer(PromptRenderer, Protocol):
    """What turns need of `serve_app.rendering.Renderer`."""

    def check_budget(self, route: ApiRoute, body: Json, prompt_tokens: int) -> None: ...

    async def delta_ids(
        self, request: Any, before: list[Json], new: list[Json], *, is_answered: bool
    ) -> list[int] | None: ...


class TurnPrompt:
    """A model's renderer as one turn needs it: bodies hold only what is new, and text only.

    `document` is None for a context without messages, and for one that is being made.
    """

    accepts_media = False

    def __init__(self, renderer: TurnRenderer, tokens: bytes, document: Document | None) -> None:
        self._renderer = renderer
        self._tokens = tokens
        self._document = document

    @property
    def max_model_len(self) -> int:
        return self._renderer.max_model_len

    def validated(self, route: ApiRoute, body: Json) -> Any:
        return self._renderer.validated(route, body)

    async def render(self, route: ApiRoute, body: Json, request: Any) -> tuple[bytes, ...]:
        """One prompt. Raises `InvalidRequest`; history is never cut."""
        if self._document is None:
            (added,) = await self._renderer.render(route, body, request)
            return (self._checked(route, body, self._tokens + added),)
        prompt = await self._chat_prompt(self._document, route, body, request)
        return (self._checked(route, body, prompt),)

    async def tokenize(self, body: Json) -> Json:
        return await self._renderer.tokenize(body)

    async def _chat_prompt(
        self, document: Document, route: ApiRoute, body: Json, request: Any
    ) -> bytes:
        """The whole conversation anew where the template rewrites what was said before."""
        before, new = document.messages, _messages(body)
        ids = await self._renderer.delta_ids(
            request, before, new, is_answered=document.ends_in_answer
        )
        if ids is not None:
            return self._tokens + np.asarray(ids, dtype="<u4").tobytes()
        whole = request.model_copy(update={"messages": before + new})
        (prompt,) = await self._renderer.render(route, body, whole)
        return prompt

    def _checked(self, route: ApiRoute, body: Json, prompt: bytes) -> bytes:
        tokens = len(prompt) // TOKEN_BYTES
        self._renderer.check_budget(route, body, tokens)
        if tokens >= self.max_model_len:
            raise InvalidRequest(
                f"This model's maximum context length is {self.max_model_len} tokens, but the"
                f" conversation has {tokens}.",
                param="messages" if self._document else "prompt",
                code="context_length_exceeded",
            )
        return prompt


def _messages(body: Json) -> list[Json]:
    messages = body["messages"]
    assert isinstance(messages, list)
    return messages
