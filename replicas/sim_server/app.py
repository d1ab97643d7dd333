"""The simulated engine over HTTP, with the routes of a vLLM server that routers and clients use."""

import asyncio
import logging
import uuid
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route as Path

from replicas.engines.protocol import EngineReport, EngineRequest, Route
from replicas.engines.sim import SimEngine
from replicas.sim.answers import sse
from replicas.sim_server.metrics import SimMetrics
from replicas.sim_server.rendering import (
    Json,
    Prompts,
    chat_prompt,
    check_model,
    completion_prompts,
    parse_body,
)
from replicas.sim_server.words import pack, text_of
from router.core.errors import EngineDead, EngineError, NotFound, RequestError, WarmpathError

logger = logging.getLogger(__name__)

Parts = AsyncGenerator[bytes | EngineReport, None]
_CLIENT_IS_GONE = 499


class SimServer:
    """Routes of one engine. The application starts and stops it."""

    def __init__(self, engine: SimEngine, metrics: SimMetrics, model: str, max_len: int) -> None:
        self.engine = engine
        self._metrics = metrics
        self._model = model
        self._max_model_len = max_len

    def application(self) -> Starlette:
        return Starlette(
            lifespan=self._lifespan,
            exception_handlers={WarmpathError: _failed},
            routes=[
                Path("/v1/chat/completions", self.chat, methods=["POST"]),
                Path("/v1/completions", self.complete, methods=["POST"]),
                Path("/v1/chat/completions/render", self.render_chat, methods=["POST"]),
                Path("/v1/completions/render", self.render_completion, methods=["POST"]),
                Path("/tokenize", self.tokenize, methods=["POST"]),
                Path("/v1/models", self.models),
                Path("/health", self.health),
                Path("/metrics", self.metrics),
                Path("/reset_prefix_cache", self.reset_prefix_cache, methods=["POST"]),
            ],
        )

    async def chat(self, request: Request) -> Response:
        body = await self._body(request)
        return await self._answer(request, Route.CHAT, body, [chat_prompt(body)])

    async def complete(self, request: Request) -> Response:
        body = await self._body(request)
        return await self._answer(request, Route.COMPLETIONS, body, completion_prompts(body))

    async def render_chat(self, request: Request) -> Response:
        body = await self._body(request)
        return JSONResponse(self._rendered("chatcmpl", body, chat_prompt(body)))

    async def render_completion(self, request: Request) -> Response:
        body = await self._body(request)
        prompts = completion_prompts(body)
        return JSONResponse([self._rendered("cmpl", body, prompt) for prompt in prompts])

    async def tokenize(self, request: Request) -> Response:
        body = await self._body(request)
        ids = chat_prompt(body) if "messages" in body else completion_prompts(body)[0]
        texts = list(map(text_of, ids)) if body.get("return_token_strs") else None
        return JSONResponse(
            {
                "count": len(ids),
                "max_model_len": self._max_model_len,
                "tokens": ids,
                "token_strs": texts,
            }
        )

    async def models(self, request: Request) -> Response:
        card = {
            "id": self._model,
            "object": "model",
            "created": 0,
            "owned_by": "warmpath",
            "root": self._model,
            "parent": None,
            "max_model_len": self._max_model_len,
        }
        return JSONResponse({"object": "list", "data": [card]})

    async def health(self, request: Request) -> Response:
        await self.engine.check_health()
        return Response()

    async def metrics(self, request: Request) -> Response:
        exported = self._metrics.export(self.engine.load())
        return Response(exported, media_type="text/plain; version=0.0.4; charset=utf-8")

    async def reset_prefix_cache(self, request: Request) -> Response:
        return Response(status_code=200 if await self.engine.reset_prefix_cache() else 409)

    @asynccontextmanager
    async def _lifespan(self, _: Starlette) -> AsyncIterator[None]:
        info = await self.engine.start()
        logger.info("the simulated engine is up: %s", info)
        try:
            yield
        finally:
            await self.engine.stop()

    async def _body(self, request: Request) -> Json:
        body = parse_body(await request.body())
        check_model(body, self._model)
        return body

    async def _answer(
        self, request: Request, route: Route, body: Json, prompts: Prompts
    ) -> Response:
        salt = body.get("cache_salt")
        engine_request = EngineRequest(
            request_id=request.headers.get("x-request-id") or uuid.uuid4().hex,
            route=route,
            body=await request.body(),
            prompts=tuple(map(pack, prompts)),
            cache_salt=salt if isinstance(salt, str) else None,
            is_stream=body.get("stream") is True,
        )
        parts = self.engine.generate(engine_request)
        first = await _first(request, parts)
        if first is None:
            return Response(status_code=_CLIENT_IS_GONE)
        if engine_request.is_stream:
            return StreamingResponse(_stream(first, parts), media_type="text/event-stream")
        await parts.aclose()
        return Response(first, media_type="application/json")

    def _rendered(self, kind: str, body: Json, ids: list[int]) -> Json:
        """vLLM's generate request: what matters of it to whoever routes by tokens."""
        wanted = body.get("max_completion_tokens") or body.get("max_tokens")
        return {
            "request_id": f"{kind}-{uuid.uuid4().hex}",
            "token_ids": ids,
            "token_offsets": None,
            "features": None,
            "sampling_params": {"max_tokens": wanted or self._max_model_len - len(ids)},
            "model": self._model,
            "stream": body.get("stream") is True,
            "stream_options": body.get("stream_options"),
            "cache_salt": body.get("cache_salt"),
            "priority": body.get("priority") or 0,
        }


async def _first(request: Request, parts: Parts) -> bytes | None:
    """The answer's first part; None, and the request aborted, where its client leaves before."""
    answer = asyncio.create_task(_next(parts))
    leaving = asyncio.create_task(_left(request))
    try:
        await asyncio.wait((answer, leaving), return_when=asyncio.FIRST_COMPLETED)
        return await answer if answer.done() else None
    finally:
        for task in (answer, leaving):
            task.cancel()
        await asyncio.gather(answer, leaving, return_exceptions=True)


async def _next(parts: Parts) -> bytes:
    part = await anext(parts)
    assert isinstance(part, bytes)
    return part


async def _left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _stream(first: bytes, parts: Parts) -> AsyncIterator[bytes]:
    """Closing the answer aborts the request in the engine; its failure is the last event."""
    async with aclosing(parts):
        yield first
        try:
            async for part in parts:
                if isinstance(part, bytes):
                    yield part
        except EngineError as error:
            yield sse(_document(error))


async def _failed(request: Request, error: Exception) -> Response:
    assert isinstance(error, WarmpathError)
    return JSONResponse(_document(error), status_code=_status(error))


def _status(error: WarmpathError) -> int:
    if isinstance(error, RequestError):
        return 404 if isinstance(error, NotFound) else 400
    return 503 if isinstance(error, EngineDead) else 500


def _document(error: WarmpathError) -> Json:
    """OpenAI's, of an error."""
    is_ours = _status(error) >= 500
    param, code = (error.param, error.code) if isinstance(error, RequestError) else (None, None)
    kind = "server_error" if is_ours else "invalid_request_error"
    return {"error": {"message": error.message, "type": kind, "param": param, "code": code}}
