"""The whole HTTP face with one simulated replica and the table of contexts, in one process.

What a cluster adds is left out: decisions, Serve, the journal.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from random import Random
from typing import Any, cast

import httpx

from replicas.engines.protocol import EngineRequest, Routing
from replicas.server import LLMServer
from replicas.settlement import Settlement
from router.configuration import ContextsConfig, ModelConfig
from router.contexts.context import Moment
from router.contexts.messages import (
    ContextPage,
    ContextView,
    Kind,
    NewContext,
    OpenTurn,
    Ticket,
    TurnResult,
)
from router.contexts.settings import ContextSettings
from router.contexts.table import Change, ContextTable
from router.contexts.wire import Begin, Create, Fork, Page, Patch
from router.core.types import BookingId, ContextId, ReplicaId, Tenant
from router.policies.registry import PolicySpec
from router.rules import RuleOutcome
from router.serve.context_client import ContextClient
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
SETTINGS = ContextSettings("app")
CONFIG = ContextsConfig()


def _now() -> Moment:
    return Moment(time.monotonic(), time.time())


class TableClient(ContextClient):
    """The table without its actor: every call is applied at once."""

    def __init__(self) -> None:
        self.table = ContextTable(SETTINGS, 1, time.monotonic())
        self.committed: list[TurnResult] = []
        self.commit_error: Exception | None = None
        self._rng = Random(1)

    async def create(self, tenant: Tenant, new: NewContext) -> ContextView:
        name = ContextId(f"ctx-{self._rng.randbytes(16).hex()}")
        return self._view(self.table.create(Create(tenant, name, new), _now()))

    async def get(self, tenant: Tenant, context_id: ContextId) -> ContextView:
        return self.table.get(tenant, context_id, _now())

    async def page(self, tenant: Tenant, limit: int, after: ContextId | None) -> ContextPage:
        return self.table.page(Page(tenant, limit, after), _now())

    async def patch(
        self,
        tenant: Tenant,
        context_id: ContextId,
        ttl_s: int | None,
        metadata: Mapping[str, str] | None,
    ) -> ContextView:
        return self._view(self.table.patch(Patch(tenant, context_id, ttl_s, metadata), _now()))

    async def fork(
        self,
        tenant: Tenant,
        context_id: ContextId,
        ttl_s: int | None,
        metadata: Mapping[str, str] | None,
    ) -> ContextView:
        name = ContextId(f"ctx-{self._rng.randbytes(16).hex()}")
        return self._view(self.table.fork(Fork(tenant, context_id, name, ttl_s, metadata), _now()))

    async def delete(self, tenant: Tenant, context_id: ContextId) -> None:
        self.table.delete(tenant, context_id, _now())

    async def begin_turn(
        self,
        tenant: Tenant,
        context_id: ContextId,
        model: str,
        kind: Kind,
        expected_turns: int | None = None,
        wait_s: float = 0.0,
    ) -> OpenTurn:
        nonce = self._rng.getrandbits(63)
        begin = Begin(tenant, context_id, nonce, model, kind, expected_turns, wait_s)
        turn = self.table.begin(begin, _now())
        while turn is None:
            await asyncio.sleep(0.01)
            self.table.turns.refuse_overdue(_now())
            for waited in self.table.turns.take_ready():
                if isinstance(waited.outcome, Exception):
                    raise waited.outcome
                turn = waited.outcome
        return turn

    async def commit(self, ticket: Ticket, result: TurnResult) -> ContextView:
        if self.commit_error is not None:
            raise self.commit_error
        change = self.table.commit(ticket, result, _now())
        self.table.turns.serve_next(ticket.context_id, _now())
        self.committed.append(result)
        return self._view(change)

    def abandon(self, ticket: Ticket) -> None:
        self.table.turns.abandon(ticket.tenant, ticket.context_id, ticket.nonce, _now())

    async def close(self) -> None:
        pass

    def _view(self, change: Change) -> ContextView:
        return change.view


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
    """`requests` are those that the replica was sent."""

    client: httpx.AsyncClient
    contexts: TableClient
    requests: list[EngineRequest]
    counted: list[str]


@asynccontextmanager
async def local_front(
    renderer: TurnRenderer, loop: RenderLoop, **sim: Any
) -> AsyncIterator[LocalFront]:
    """One model, `m`. `renderer` belongs to `loop`."""
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

    def finish(record: RequestRecord) -> None:
        record.is_finished = True

    salts = CacheSalts(b"a secret of sixteen bytes")
    admission = Admission({"m": renderer}, salts, lambda _: BLOCK_SIZE, counted.append)
    dispatchers = {"m": Dispatcher(OneReplica(), send, finish, 10.0, 1, counted.append)}
    contexts = TableClient()
    serving = Serving(admission, loop, {"m": renderer}, dispatchers)
    front = Front(
        keys=KeyRing(),
        admission=admission,
        render_loop=loop,
        renderers={"m": renderer},
        dispatchers=dispatchers,
        finish=finish,
        tuning=Tuning(),
        max_body_bytes=1024 * 1024,
        count=counted.append,
        contexts=Contexts(contexts, CONFIG, serving),
    )
    transport = httpx.ASGITransport(build_api(front), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        yield LocalFront(client, contexts, requests, counted)
    await server.shutdown()


async def load_renderer(model: ModelConfig) -> TurnRenderer:
    """Takes seconds."""
    from serve_app.rendering import Renderer

    return cast(TurnRenderer, await Renderer.load(model, 2))
