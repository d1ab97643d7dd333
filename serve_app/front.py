"""What the routes share: the served models and the parts that a request passes through."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from fastapi import Request

from router.core.types import Tenant
from serve_app.admission import Admission, Admitted, PromptRenderer
from serve_app.allow_list import ApiRoute
from serve_app.auth import ANONYMOUS, KeyRing
from serve_app.body import read_body
from serve_app.contexts.service import Contexts
from serve_app.dispatch import Dispatcher, Finish
from serve_app.errors import CountFault
from serve_app.render_loop import SHORT_BODY_BYTES, RenderLoop
from serve_app.tuning import Tuning


@dataclass(frozen=True, slots=True)
class Front:
    """Everything behind the routes, wired by `serve_app.ingress`. `created_s` is Unix time."""

    keys: KeyRing
    admission: Admission
    render_loop: RenderLoop
    renderers: Mapping[str, PromptRenderer | None]
    dispatchers: Mapping[str, Dispatcher]
    finish: Finish
    tuning: Tuning
    max_body_bytes: int
    count: CountFault
    contexts: Contexts | None = None
    created_s: int = field(default_factory=lambda: int(time.time()))

    async def body(self, request: Request) -> bytes:
        """Raises `PayloadTooLarge`."""
        length = request.headers.get("content-length")
        return await read_body(request.stream(), length, self.max_body_bytes)

    async def admit(self, route: ApiRoute, raw: bytes, tenant: Tenant) -> Admitted:
        """See `Admission.admit`; long bodies are admitted beside the serving loop."""
        admission = self.admission.admit(route, raw, tenant)
        if len(raw) <= SHORT_BODY_BYTES:
            return await admission
        return await self.render_loop.run(admission)


def tenant_of(request: Request) -> Tenant:
    """Set by the gate for every request that it lets through."""
    tenant = request.scope.get("tenant", ANONYMOUS)
    return Tenant(str(tenant))
