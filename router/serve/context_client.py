"""Contexts as an ingress process sees them: create, use, fork, delete; turns that commit durably.

Every call has a deadline and is safe to repeat, which the client does by itself while the manager
is away; what it cannot learn in time is `ContextsUnavailable`. Leases of open turns are renewed
here until the turn is committed or abandoned: the caller owes one of the two.
"""

import asyncio
import logging
import secrets
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass

from router.contexts.messages import (
    ContextPage,
    ContextView,
    Kind,
    NewContext,
    OpenTurn,
    Ticket,
    TurnResult,
)
from router.contexts.wire import (
    Abandon,
    Begin,
    Begun,
    Commit,
    Create,
    Delete,
    Done,
    Fork,
    Get,
    Page,
    Paged,
    Patch,
    Viewed,
)
from router.core.errors import ContextsUnavailable
from router.core.types import ContextId, Tenant
from router.serve.context_calls import RepeatedCalls
from router.serve.context_lanes import ContextConnection, Lane
from router.serve.context_leases import TurnLeases

_log = logging.getLogger(__name__)

_ID_BYTES = 24
_NONCE_BITS = 63
_MAX_BACKGROUND = 4096


@dataclass(frozen=True, slots=True)
class ContextLinkSettings:
    """Seconds. A commit may wait longer: its turn has been generated, which is worth a restart."""

    call_limit_s: float = 10.0
    commit_limit_s: float = 20.0
    repeat_after_s: float = 0.1


class ContextClient:
    """One for each ingress process; every call belongs to the event loop that made it.

    All calls raise `ContextsUnavailable` where the manager does not answer in time, and all that
    name a context `ContextNotFound` and `ContextExpired`.
    """

    def __init__(
        self, connection: ContextConnection, settings: ContextLinkSettings | None = None
    ) -> None:
        self._settings = settings or ContextLinkSettings()
        self._connection = connection
        self._calls = RepeatedCalls(self._settings.call_limit_s, self._settings.repeat_after_s)
        self._quick = Lane(connection, self._settings.call_limit_s)
        self._durable = Lane(connection, self._settings.commit_limit_s)
        self._leases = TurnLeases(self._quick.send)
        self._waits: set[Lane] = set()
        self._background: set[asyncio.Task[None]] = set()

    def open(self) -> None:
        """Has a manager found or made, in the background: contexts expire without any call.

        Where that fails, the first call makes it.
        """
        self._in_background(self._open_quietly())

    async def create(self, tenant: Tenant, new: NewContext) -> ContextView:
        """Durable when it returns. Raises `ContextQuotaExceeded`."""
        create = Create(tenant, new.context_id or fresh_id(), new)
        return (await self._calls.ask(create, self._durable, Viewed)).view

    async def get(self, tenant: Tenant, context_id: ContextId) -> ContextView:
        return (await self._calls.ask(Get(tenant, context_id), self._quick, Viewed)).view

    async def page(self, tenant: Tenant, limit: int, after: ContextId | None) -> ContextPage:
        """The tenant's own, newest first, from the one behind `after` on."""
        return (await self._calls.ask(Page(tenant, limit, after), self._quick, Paged)).page

    async def patch(
        self,
        tenant: Tenant,
        context_id: ContextId,
        ttl_s: int | None,
        metadata: Mapping[str, str] | None,
    ) -> ContextView:
        """None leaves it as it is. Restarts the idle clock."""
        patch = Patch(tenant, context_id, ttl_s, metadata)
        return (await self._calls.ask(patch, self._durable, Viewed)).view

    async def fork(
        self,
        tenant: Tenant,
        context_id: ContextId,
        ttl_s: int | None,
        metadata: Mapping[str, str] | None,
    ) -> ContextView:
        """A context with the history of the last committed turn. Raises `ContextQuotaExceeded`."""
        fork = Fork(tenant, context_id, fresh_id(), ttl_s, metadata)
        return (await self._calls.ask(fork, self._durable, Viewed)).view

    async def delete(self, tenant: Tenant, context_id: ContextId) -> None:
        """Raises `ContextBusy` during a turn."""
        await self._calls.ask(Delete(tenant, context_id), self._durable, Done)

    async def begin_turn(
        self,
        tenant: Tenant,
        context_id: ContextId,
        model: str,
        kind: Kind,
        expected_turns: int | None = None,
        wait_s: float = 0.0,
    ) -> OpenTurn:
        """Waits at most `wait_s` for the end of another turn; cancelling it ends the wait.

        Raises `ContextBusy`, `TurnConflict`, `ModelMismatch`, `ContextKindMismatch` and
        `ContextQuotaExceeded`.
        """
        nonce = secrets.randbits(_NONCE_BITS)
        begin = Begin(tenant, context_id, nonce, model, kind, expected_turns, wait_s)
        try:
            turn = await self._begin(begin)
        except (ContextsUnavailable, asyncio.CancelledError):
            self._abandon(Abandon(tenant, context_id, nonce))
            raise
        self._leases.hold(turn)
        return turn

    async def commit(self, ticket: Ticket, result: TurnResult) -> ContextView:
        """Durable when it returns. Raises `TurnConflict` where the lease has lapsed meanwhile.

        After `ContextsUnavailable` the turn may have been committed or not; calling again tells.
        """
        limit_s = self._settings.commit_limit_s
        view = (await self._calls.ask(Commit(ticket, result), self._durable, Viewed, limit_s)).view
        self._leases.drop(ticket)
        return view

    def abandon(self, ticket: Ticket) -> "asyncio.Future[None]":
        """Ends the turn without a trace, in the background. Idempotent; after a commit nothing.

        Who wants the context to be free may wait for what is returned, which never fails.
        """
        self._leases.drop(ticket)
        return self._abandon(Abandon(ticket.tenant, ticket.context_id, ticket.nonce))

    @property
    def open_turns(self) -> int:
        """Turns of this process whose leases are renewed."""
        return len(self._leases)

    async def close(self) -> None:
        """Who still waits gets `ContextsUnavailable`; open turns are left to their lease."""
        self._calls.is_closed = True
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        await self._leases.close()
        for lane in (self._quick, self._durable, *self._waits):
            await lane.close()

    async def _begin(self, begin: Begin) -> OpenTurn:
        if begin.wait_s <= 0:
            return (await self._calls.ask(begin, self._quick, Begun)).turn
        # A turn that waits must not keep others of its call from their answers.
        limit_s = self._settings.call_limit_s + begin.wait_s
        lane = Lane(self._connection, limit_s)
        self._waits.add(lane)
        try:
            return (await self._calls.ask(begin, lane, Begun, limit_s)).turn
        finally:
            self._waits.discard(lane)
            await lane.close()

    def _abandon(self, abandon: Abandon) -> "asyncio.Future[None]":
        """Where too many are under way, the lease sees to it."""
        if len(self._background) < _MAX_BACKGROUND:
            return self._in_background(self._send_quietly(abandon))
        left_to_the_lease = asyncio.get_running_loop().create_future()
        left_to_the_lease.set_result(None)
        return left_to_the_lease

    async def _open_quietly(self) -> None:
        try:
            await self._connection.open()
        except ContextsUnavailable as error:
            _log.warning("there is no context manager yet: %s", error.message)

    async def _send_quietly(self, abandon: Abandon) -> None:
        try:
            await self._calls.ask(abandon, self._quick, Done)
        except ContextsUnavailable:
            return

    def _in_background(self, work: Coroutine[None, None, None]) -> "asyncio.Task[None]":
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return task


def fresh_id() -> ContextId:
    """192 random bits, URL-safe."""
    return ContextId(f"ctx-{secrets.token_urlsafe(_ID_BYTES)}")
