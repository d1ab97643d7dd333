"""Chat, completions and responses: admitted alike, dispatched alike, answered alike."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace

from fastapi import APIRouter, Request
from fastapi.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from router.core.errors import InvalidRequest
from serve_app.allow_list import ApiRoute
from serve_app.contexts.parameters import SESSION_HEADER, is_context, session_tag
from serve_app.dispatch import Answer
from serve_app.front import Front, tenant_of
from serve_app.observe.decision_headers import decision_headers
from serve_app.observe.record import RequestRecord
from serve_app.routing import ClientHints, forbids_storing

STREAM_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
USER = "user"
"""Of the sources of a session, the one that is no header."""
MAX_SESSION_CHARACTERS = 128


class AnswerStream(StreamingResponse):
    """Ends the answer when the response ends, be it that its client has gone before the start."""

    def __init__(self, answer: Answer, headers: dict[str, str]) -> None:
        super().__init__(
            answer.stream(), media_type="text/event-stream", headers=STREAM_HEADERS | headers
        )
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self._answer.close()


def generate_api(front: Front) -> APIRouter:
    api = APIRouter()
    for route in (ApiRoute.CHAT, ApiRoute.COMPLETIONS, ApiRoute.RESPONSES):
        api.add_api_route(route.value, _endpoint(front, route), methods=["POST"])
    return api


def _endpoint(front: Front, route: ApiRoute) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        record = RequestRecord(route, tenant_of(request), request.headers.get("x-request-id"))
        try:
            answer = await _begin(front, request, record)
        except BaseException as error:
            record.fail(error)
            front.finish(record)
            raise
        headers = _decision_headers(front, record)
        if record.is_stream:
            return AnswerStream(answer, headers)
        whole = await answer.whole()
        return Response(whole, media_type="application/json", headers=headers)

    return endpoint


async def _begin(front: Front, request: Request, record: RequestRecord) -> Answer:
    raw = await front.body(request)
    if is_context(request.headers.get(SESSION_HEADER)):
        if front.contexts is None:
            raise InvalidRequest("Contexts are not kept here.", param=SESSION_HEADER)
        return await front.contexts.turns.begin(raw, request.headers, record)
    admitted = await front.admit(record.route, raw, tenant_of(request))
    record.admit(admitted)
    hints = _hints(front, request, admitted.user)
    record.session_hint = hints.session_hint
    return await front.dispatchers[admitted.model].begin(admitted, hints, record)


def _hints(front: Front, request: Request, user: str | None) -> ClientHints:
    """Of a session goes only what tells it from others, and that for each tenant by itself."""
    hints = client_hints(request.headers, user, front.tuning.current.config.session_from)
    if hints.session_hint is None:
        return hints
    return replace(hints, session_hint=session_tag(tenant_of(request), hints.session_hint))


def client_hints(
    headers: Mapping[str, str], user: str | None, session_from: Sequence[str]
) -> ClientHints:
    """`headers` by name in any case; `session_from` as in the `user_config`."""
    found = (user if source == USER else headers.get(source) for source in session_from)
    session = next(filter(None, found), None)
    return ClientHints(
        frozenset(headers),
        session[:MAX_SESSION_CHARACTERS] if session is not None else None,
        no_store=forbids_storing(headers),
    )


def _decision_headers(front: Front, record: RequestRecord) -> dict[str, str]:
    if record.live is None or not front.tuning.current.config.expose_decisions:
        return {}
    return decision_headers(record.live)
