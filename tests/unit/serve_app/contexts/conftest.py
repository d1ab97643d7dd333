"""One renderer of the tiny model for all tests here: loading it takes seconds."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from router.configuration import ModelConfig, SimConfig
from serve_app.auth import KeyRing
from serve_app.contexts.prompts import TurnRenderer
from serve_app.render_loop import RenderLoop
from tests.unit.serve_app.contexts.local_front import (
    MAX_MODEL_LEN,
    LocalFront,
    load_renderer,
    local_front,
)


@pytest.fixture(scope="session")
def render_loop() -> Iterator[RenderLoop]:
    loop = RenderLoop()
    yield loop
    loop.close()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def renderer(render_loop: RenderLoop) -> TurnRenderer:
    model = ModelConfig(name="m", engine="sim", sim=SimConfig(max_model_len=MAX_MODEL_LEN))
    return await render_loop.run(load_renderer(model))


@pytest_asyncio.fixture
async def front(
    renderer: TurnRenderer, render_loop: RenderLoop, tmp_path: Path
) -> AsyncIterator[LocalFront]:
    async with local_front(renderer, render_loop, tmp_path, KeyRing()) as front:
        yield front
