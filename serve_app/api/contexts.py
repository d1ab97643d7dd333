"""Contexts themselves: made, looked at, changed, forked, deleted. Turns are in `generate`."""

import msgspec
from fastapi import APIRouter, Request
from fastapi.responses import Response

from router.contexts.messages import ContextView
from serve_app.allow_list import ApiRoute, Json
from serve_app.body import decode_object
from serve_app.contexts.parameters import SESSION_HEADER, context_id, metadata, page, ttl_s
from serve_app.contexts.service import Contexts
from serve_app.contexts.views import context_object, page_object
from serve_app.front import Front, tenant_of
from serve_app.observe.record import RequestRecord

PATH = "/v1/context"


def contexts_api(front: Front, contexts: Contexts) -> APIRouter:
    api = APIRouter()

    @api.post(PATH)
    async def create(request: Request) -> Response:
        route = ApiRoute.COMPLETIONS
        record = RequestRecord(route, tenant_of(request), request.headers.get("x-request-id"))
        try:
            raw = await front.body(request)
            view = await contexts.creation.create(raw, request.headers, record)
        except BaseException as error:
            record.fail(error)
            front.finish(record)
            raise
        return _created(view)

    @api.get(PATH)
    async def list_contexts(request: Request) -> Json:
        limit, after = page(request.query_params)
        views = await contexts.client.page(tenant_of(request), limit, after)
        return page_object(await contexts.stored.page_shown(views))

    @api.get(f"{PATH}/{{name}}")
    async def get(request: Request, name: str) -> Json:
        view = await contexts.client.get(tenant_of(request), context_id(name))
        return context_object(await contexts.stored.shown(view))

    @api.patch(f"{PATH}/{{name}}")
    async def patch(request: Request, name: str) -> Json:
        body = await _body(front, request)
        ttl, pairs = ttl_s(body, request.headers, contexts.config), metadata(body)
        view = await contexts.client.patch(tenant_of(request), context_id(name), ttl, pairs)
        return context_object(await contexts.stored.shown(view))

    @api.post(f"{PATH}/{{name}}/fork")
    async def fork(request: Request, name: str) -> Response:
        body = await _body(front, request)
        ttl, pairs = ttl_s(body, request.headers, contexts.config), metadata(body)
        view = await contexts.client.fork(tenant_of(request), context_id(name), ttl, pairs)
        return _created(await contexts.stored.shown(view))

    @api.delete(f"{PATH}/{{name}}")
    async def delete(request: Request, name: str) -> Json:
        await contexts.client.delete(tenant_of(request), context_id(name))
        return {"id": name, "object": "context.deleted", "deleted": True}

    return api


async def _body(front: Front, request: Request) -> Json:
    """A JSON object; nothing stands for an empty one."""
    raw = await front.body(request)
    return decode_object(raw) if raw else {}


def _created(view: ContextView) -> Response:
    return Response(
        msgspec.json.encode(context_object(view)),
        status_code=201,
        media_type="application/json",
        headers={SESSION_HEADER: view.id},
    )
