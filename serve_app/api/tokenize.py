"""`/tokenize`: the ids that the same text or messages would have as a prompt."""

from fastapi import APIRouter, Request

from serve_app.allow_list import ApiRoute, Json
from serve_app.front import Front


def tokenize_api(front: Front) -> APIRouter:
    api = APIRouter()

    @api.post(ApiRoute.TOKENIZE.value)
    async def tokenize(request: Request) -> Json:
        raw = await front.body(request)
        return await front.render_loop.run(front.admission.tokenize(raw))

    return api
