"""The list of models, from the configuration: no replica is asked, so none need run."""

from fastapi import APIRouter

from serve_app.admission import unknown_model
from serve_app.allow_list import Json
from serve_app.front import Front


def models_api(front: Front) -> APIRouter:
    api = APIRouter()

    @api.get("/v1/models")
    async def list_models() -> Json:
        return {"object": "list", "data": [_card(front, name) for name in front.renderers]}

    @api.get("/v1/models/{name:path}")
    async def get_model(name: str) -> Json:
        if name not in front.renderers:
            raise unknown_model()
        return _card(front, name)

    return api


def _card(front: Front, name: str) -> Json:
    renderer = front.renderers[name]
    return {
        "id": name,
        "object": "model",
        "created": front.created_s,
        "owned_by": "warmpath",
        "max_model_len": renderer.max_model_len if renderer is not None else None,
    }
