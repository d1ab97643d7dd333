"""Chat, completions and responses: admitted alike, dispatched alike, answered alike."""

from collections.abc import Awaitable, Callable

from fastapi import APIRouter, Request
from fastapi.responses import Response, StreamingResponse

from serve_app.allow_list import ApiRoute
from serve_app.front import Front, tenant_of

STREAM_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


def generate_api(front: Front) -> APIRouter:
    api = APIRouter()
    for route in (ApiRoute.CHAT, ApiRoute.COMPLETIONS, ApiRoute.RESPONSES):
        api.add_api_route(route.value, _endpoint(front, route), methods=["POST"])
    return api


def _endpoint(front: Front, route: ApiRoute) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        raw = await front.body(request)
        admitted = await front.render_loop.run(
            front.admission.admit(route, raw, tenant_of(request))
        )
        answer = await front.dispatchers[admitted.model].begin(admitted.request)
        if admitted.request.is_stream:
            return StreamingResponse(
                answer.stream(), media_type="text/event-stream", headers=STREAM_HEADERS
            )
        return Response(await answer.whole(), media_type="application/json")

    return endpoint
