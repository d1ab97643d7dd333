"""The whole HTTP face with one simulated replica and the context manager, in one process.

What a cluster adds is left out: decisions and Serve.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import httpx
from fastapi import FastAPI

from replicas.engines.protocol import EngineRequest, Routing
from replicas.server import LLMServer
from replicas.settlement import Settlement
from router.configuration import ContextsConfig, ModelConfig
from router.contexts.journals import open_journal
from router.contexts.messages import ContextView, Ticket, TurnResult
from router.contexts.settings import ContextSettings
from router.contexts.wire import Commit, Landing, decode_flight
from router.core.errors import ContextsUnavailable
from router.core.types import BookingId, ReplicaId
from router.policies.registry import PolicySpec
from router.rules import RuleOutcome
from router.serve.context_client import ContextClient, ContextLinkSettings
from router.serve.context_service import ContextService, open_service
from router.serve.index_client import Route as Decided
from serve_app.admission import Admission, Admitted
from serve_app.api.application import build_api
from serve_app.auth import KeyRing
from serve_app.contexts.prompts import TurnRenderer
from serve_app.contexts.service import Contexts
from serve_app.contexts.serving import Serving
from serve_app.dispatch import Dispatcher
from serve_app.front import Front
from serve_app.observe.record import RequestRecord
from serve_app.render_loop import RenderLoop
from serve_app.routing import ClientHints, LiveRequest
from serve_app.salts import CacheSalts
from serve_app.tuning import Tuning

BLOCK_SIZE = 4
MAX_MODEL_LEN = 2000
REPLICA = ReplicaId("r")


class LocalContexts:
    """A way to a manager in this process. While `is_down` it cannot be reached."""

    def __init__(self, service: ContextService) -> None:
        self.is_down = False
        self.goes_down_at_commit = False
        self._service = service

    async def open(self) -> None:
        pass

    async def exchange(self, flight: bytes) -> Landing:
        operations = decode_flight(flight).operations
        if self.goes_down_at_commit and any(isinstance(o, Commit) for o in operations):
            self.goes_down_at_commit, self.is_down = False, True
        if self.is_down:
            raise ContextsUnavailable("The context manager cannot be reached.", retry_after_s=3)
        return Landing(await self._service.exchange(flight))


class OneReplica:
    """Every request goes to it, with nothing forecast."""

    async def begin(
        self, admitted: Admitted, hints: ClientHints, excluded: Sequence[ReplicaId] = ()
    ) -> LiveRequest:
        decided = Decided(BookingId(1), (REPLICA,), "only_candidate")
        routing = Routing(decided.booking_id, (REPLICA,), (0,), (0,), None, 0.0, True)
        request = replace(admitted.request, routing=routing)
        policy = RuleOutcome(PolicySpec(), None)
        return LiveRequest(request, decided, policy, BLOCK_SIZE, 1, _NoBookings(), REPLICA)  # type: ignore[arg-type]

    def end(self, live: LiveRequest) -> None:
        pass


class _NoBookings:
    def first_token(self, booking_id: BookingId) -> None:
        pass

    def progress(self, booking_id: BookingId, output_tokens: int) -> None:
        pass


@dataclass(frozen=True, slots=True)
class LocalFront:
    """`requests` are those that the replica was sent, `commits` what turns have left, `statuses`
    those of requests that have ended."""

    client: httpx.AsyncClient
    api: FastAPI
    contexts: LocalContexts
    requests: list[EngineRequest]
    commits: list[TurnResult]
    counted: list[str]
    statuses: list[int]


class _WatchedClient(ContextClient):
    """Notes what turns leave."""

    def __init__(self, connection: LocalContexts, commits: list[TurnResult]) -> None:
        super().__init__(connection, ContextLinkSettings(1.0, 1.0))
        self._commits = commits

    async def commit(self, ticket: Ticket, result: TurnResult) -> ContextView:
        self._commits.append(result)
        return await super().commit(ticket, result)


@asynccontextmanager
async def local_front(
    renderer: TurnRenderer, loop: RenderLoop, folder: Path, keys: KeyRing, **sim: Any
) -> AsyncIterator[LocalFront]:
    """One model, `m`. `renderer` belongs to `loop`, the journal lies in `folder`."""
    settings = {
        "block_size": BLOCK_SIZE,
        "max_model_len": MAX_MODEL_LEN,
        "prefill_ms_per_token": 0.0,
        "prefill_base_ms": 0.1,
        "decode_ms_per_token": 0.1,
    }
    server = LLMServer({"name": "m", "engine": "sim", "sim": settings | sim})
    requests: list[EngineRequest] = []
    counted: list[str] = []

    async def send(request: EngineRequest) -> AsyncGenerator[bytes | Settlement, None]:
        requests.append(request)
        async for item in server.generate(request):
            yield item

    statuses: list[int] = []

    def finish(record: RequestRecord) -> None:
        if not record.is_finished:
            record.is_finished = True
            statuses.append(record.status)

    salts = CacheSalts(b"a secret of sixteen bytes")
    admission = Admission({"m": renderer}, salts, lambda _: BLOCK_SIZE, counted.append)
    dispatchers = {"m": Dispatcher(OneReplica(), send, finish, 10.0, 1, counted.append)}
    journal = open_journal(str(folder / "contexts.sqlite"), "app")
    service = await open_service(journal, ContextSettings("app"), lambda: None)
    contexts, commits = LocalContexts(service), list[TurnResult]()
    manager = _WatchedClient(contexts, commits)
    serving = Serving(admission, loop, {"m": renderer}, dispatchers)
    front = Front(
        keys=keys,
        admission=admission,
        render_loop=loop,
        renderers={"m": renderer},
        dispatchers=dispatchers,
        finish=finish,
        tuning=Tuning(),
        max_body_bytes=1024 * 1024,
        count=counted.append,
        contexts=Contexts(manager, ContextsConfig(), serving),
    )
    api = build_api(front)
    transport = httpx.ASGITransport(api, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        yield LocalFront(client, api, contexts, requests, commits, counted, statuses)
    await manager.close()
    await service.close("The test is over.")
    await server.shutdown()


async def load_renderer(model: ModelConfig) -> TurnRenderer:
    """Takes seconds."""
    from serve_app.rendering import Renderer

    return cast(TurnRenderer, await Renderer.load(model, 2))
