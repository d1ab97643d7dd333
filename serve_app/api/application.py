"""All routes as one ASGI application, behind the gate."""

from fastapi import FastAPI, Request
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from router.core.errors import InvalidRequest, NotFound, WarmpathError
from serve_app.api.contexts import contexts_api
from serve_app.api.gate import Gate
from serve_app.api.generate import generate_api
from serve_app.api.models import models_api
from serve_app.api.tokenize import tokenize_api
from serve_app.errors import error_response, unexpected
from serve_app.front import Front


def build_api(front: Front) -> FastAPI:
    """Has no documentation routes: what is not listed here does not exist."""
    api = FastAPI(title="Warmpath", docs_url=None, redoc_url=None, openapi_url=None)
    for routes in (generate_api(front), models_api(front), tokenize_api(front)):
        api.include_router(routes)
    if front.contexts is not None:
        api.include_router(contexts_api(front, front.contexts))
    api.add_api_route("/health", _health, methods=["GET"])
    api.add_exception_handler(WarmpathError, _on_error)
    api.add_exception_handler(HTTPException, _on_http_exception)

    async def on_fault(_: Request, error: Exception) -> Response:
        return error_response(unexpected(error, front.count, "answering a request"))

    api.add_exception_handler(Exception, on_fault)
    api.add_middleware(Gate, keys=front.keys)
    return api


async def _health() -> dict[str, str]:
    """This ingress lives. It asks no model: one broken model must not take the others down."""
    return {"status": "ok"}


async def _on_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, WarmpathError)
    return error_response(error)


async def _on_http_exception(_: Request, error: Exception) -> Response:
    """A path or method that no route has."""
    assert isinstance(error, HTTPException)
    if error.status_code == 404:
        return error_response(NotFound("There is no such path."))
    response = error_response(InvalidRequest("The path does not take this method."))
    response.status_code = error.status_code
    return response
