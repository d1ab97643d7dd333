"""Where a body is admitted: short ones at once, long ones beside what is being served."""

import threading
from typing import Any, cast

import pytest

from router.core.types import Tenant
from serve_app.admission import Admission
from serve_app.allow_list import ApiRoute
from serve_app.front import SHORT_BODY_BYTES, Front
from serve_app.render_loop import RenderLoop


class ThreadAdmission:
    """Says in which thread a body was admitted."""

    async def admit(self, route: ApiRoute, raw: bytes, tenant: Tenant) -> str:
        return threading.current_thread().name


@pytest.mark.parametrize(
    ("body_bytes", "is_beside"), [(SHORT_BODY_BYTES, False), (SHORT_BODY_BYTES + 1, True)]
)
async def test_only_long_bodies_go_to_the_render_loop(body_bytes: int, is_beside: bool) -> None:
    render_loop = RenderLoop()
    parts = dict.fromkeys(
        ("keys", "renderers", "dispatchers", "finish", "tuning", "count"), cast(Any, None)
    )
    front = Front(
        admission=cast(Admission, ThreadAdmission()),
        render_loop=render_loop,
        max_body_bytes=0,
        **parts,
    )
    try:
        thread = await front.admit(ApiRoute.CHAT, bytes(body_bytes), Tenant("t"))
    finally:
        render_loop.close()
    assert (cast(str, thread) == "render-loop") == is_beside
