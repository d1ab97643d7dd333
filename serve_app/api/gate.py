"""The door of the HTTP face: keys and headers are judged before any route is looked up."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from router.core.errors import InvalidRequest, WarmpathError
from serve_app.auth import ANONYMOUS, KeyRing
from serve_app.errors import error_response

OPEN_PATHS = frozenset({"/health"})

REFUSED_HEADERS = frozenset({"x-request-disconnect-disabled"})
"""Serve would let the engine work on for a client that is gone."""

_REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")


@dataclass(frozen=True, slots=True)
class Gate:
    """ASGI middleware. Puts the tenant into the scope; refusals are answered here."""

    app: ASGIApp
    keys: KeyRing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            return await send({"type": "websocket.close"})
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        try:
            headers = Headers(scope=scope)
            is_open = path_of(scope) in OPEN_PATHS
            tenant = ANONYMOUS if is_open else self.keys.authenticate(headers.get("authorization"))
            check_headers(headers)
        except WarmpathError as error:
            return await error_response(error)(scope, receive, send)
        await self.app({**scope, "tenant": tenant}, receive, send)


def check_headers(headers: Mapping[str, str]) -> None:
    """Raises `InvalidRequest`. Serve echoes `X-Request-Id`, or makes one, on every answer."""
    for name in REFUSED_HEADERS.intersection(headers):
        raise InvalidRequest(f"The header '{name}' is not accepted here.")
    request_id = headers.get("x-request-id")
    if request_id is not None and not _REQUEST_ID.fullmatch(request_id):
        raise InvalidRequest("'X-Request-Id' must be 1 to 128 letters, digits or '._:-'.")


def path_of(scope: Scope) -> str:
    """The path below the application's route prefix."""
    path, prefix = str(scope["path"]), str(scope.get("root_path", ""))
    return path.removeprefix(prefix) if prefix else path
