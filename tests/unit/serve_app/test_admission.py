"""What cannot be rendered here is served all the same: blind, counted, and by load."""

import logging
from typing import Any

import msgspec
import pytest

from router.core.errors import InvalidRequest
from router.core.types import Tenant
from serve_app.admission import Admission, Admitted, PromptRenderer
from serve_app.allow_list import ApiRoute, Json
from serve_app.salts import CacheSalts


class Renderer:
    """One token a byte of the prompt; `failure` is raised instead."""

    max_model_len = 1000
    accepts_media = False

    def __init__(self, failure: Exception | None = None) -> None:
        self._failure = failure

    def validated(self, route: ApiRoute, body: Json) -> Any:
        return body

    async def render(self, route: ApiRoute, body: Json, request: Any) -> tuple[bytes, ...]:
        if self._failure is not None:
            raise self._failure
        return (b"".join(byte.to_bytes(4, "little") for byte in body["prompt"].encode()),)

    async def tokenize(self, body: Json) -> Json:
        return {}


async def admitted(renderer: PromptRenderer | None, faults: list[str]) -> Admitted:
    admission = Admission({"m": renderer}, CacheSalts(None), lambda _: 16, faults.append)
    body = {"model": "m", "prompt": "p" * 160}
    return await admission.admit(ApiRoute.COMPLETIONS, msgspec.json.encode(body), Tenant(""))


async def test_a_rendered_prompt_is_looked_up_block_by_block() -> None:
    faults: list[str] = []
    request = await admitted(Renderer(), faults)
    assert [len(chain) for chain in request.blocks.chains] == [10]
    assert not request.request.needs_render and faults == []


async def test_without_a_tokenizer_the_engine_renders_and_nothing_is_looked_up() -> None:
    faults: list[str] = []
    request = await admitted(None, faults)
    assert request.request.needs_render and request.blocks.is_blind
    assert faults == ["no_renderer"]


async def test_rendering_that_breaks_costs_the_look_up_only(
    caplog: pytest.LogCaptureFixture,
) -> None:
    faults: list[str] = []
    with caplog.at_level(logging.ERROR):
        request = await admitted(Renderer(RuntimeError("a template's fault")), faults)
    assert request.request.needs_render and request.blocks.is_blind
    assert faults == ["render_failed"]
    assert request.request.request_id in caplog.text


async def test_what_the_client_got_wrong_stays_an_error() -> None:
    faults: list[str] = []
    with pytest.raises(InvalidRequest):
        await admitted(Renderer(InvalidRequest("no such role")), faults)
    assert faults == []
