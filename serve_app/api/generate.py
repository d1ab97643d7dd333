"""Chat, completions and responses: admitted alike, dispatched alike, answered alike."""

from collections.abc import Awaitable, Callable

from fastapi import APIRouter, Request
from fastapi.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from serve_app.allow_list import ApiRoute
from serve_app.dispatch import Answer
from serve_app.front import Front, tenant_of
from serve_app.observe.decision_headers import decision_headers
from serve_app.observe.record import RequestRecord
from serve_app.routing import ClientHints

STREAM_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
SESSION_HEADER = "x-session-id"
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
    admitted = await front.render_loop.run(
        front.admission.admit(record.route, raw, tenant_of(request))
    )
    record.admit(admitted)
    return await front.dispatchers[admitted.model].begin(admitted, _hints(request), record)


def _hints(request: Request) -> ClientHints:
    session = request.headers.get(SESSION_HEADER)
    return ClientHints(
        frozenset(request.headers.keys()),
        session[:MAX_SESSION_CHARACTERS] if session else None,
    )


def _decision_headers(front: Front, record: RequestRecord) -> dict[str, str]:
    if record.live is None or not front.tuning.current.config.expose_decisions:
        return {}
    return decision_headers(record.live)
