"""The table of the contract against the whole HTTP face in one process, without a cluster."""

import asyncio
import hashlib
import socket
import threading
from collections.abc import Iterator

import httpx
import pytest
import uvicorn

from router.core.types import Tenant
from serve_app.auth import KeyRing
from serve_app.contexts.prompts import TurnRenderer
from serve_app.render_loop import RenderLoop
from tests.contract.context_table import *  # noqa: F403  # every test there is one here
from tests.serve.context_calls import KEYS, Caller
from tests.unit.serve_app.contexts.local_front import MAX_MODEL_LEN, local_front


@pytest.fixture(scope="module")
def contexts_http(
    renderer: TurnRenderer, render_loop: RenderLoop, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[httpx.Client]:
    """A server of its own in a thread of its own, with ann's and bob's keys."""
    entries = ((Tenant(name), hashlib.sha256(key.encode()).digest()) for name, key in KEYS.items())
    folder, keys = tmp_path_factory.mktemp("contexts"), KeyRing(tuple(entries))
    server, ready, over = None, threading.Event(), None
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))

        async def serve() -> None:
            nonlocal server
            async with local_front(renderer, render_loop, folder, keys) as front:
                server = uvicorn.Server(uvicorn.Config(front.api, log_level="error"))
                ready.set()
                await server.serve(sockets=[listening])

        over = threading.Thread(target=asyncio.run, args=(serve(),))
        over.start()
        assert ready.wait(30)
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        with httpx.Client(base_url=url, timeout=30) as client:
            yield client
        assert server is not None
        server.should_exit = True
        over.join()


@pytest.fixture
def ann(contexts_http: httpx.Client) -> Caller:
    return Caller(contexts_http, "m", "ann")


@pytest.fixture
def bob(contexts_http: httpx.Client) -> Caller:
    return Caller(contexts_http, "m", "bob")


@pytest.fixture
def max_model_len() -> int:
    return MAX_MODEL_LEN
