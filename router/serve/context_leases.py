"""Leases of one process's open turns, renewed together until each turn ends."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from router.contexts.messages import OpenTurn, Ticket
from router.contexts.wire import Operation, Renew, Renewed, Reply
from router.core.errors import ContextsUnavailable

_log = logging.getLogger(__name__)

_RENEWALS_A_LEASE = 3
_RENEWED_AT_ONCE = 256


class TurnLeases:
    """Renews by a timer of its own, which runs while there is anything to renew."""

    def __init__(self, send: Callable[[Operation], Awaitable[Reply]]) -> None:
        self._send = send
        self._tickets: dict[int, Ticket] = {}
        self._timer: asyncio.Task[None] | None = None
        self.lost = 0

    def __len__(self) -> int:
        return len(self._tickets)

    def hold(self, turn: OpenTurn) -> None:
        self._tickets[turn.ticket.nonce] = turn.ticket
        if self._timer is None:
            self._timer = asyncio.create_task(self._renew_forever(turn.lease_s))

    def drop(self, ticket: Ticket) -> None:
        """Idempotent."""
        self._tickets.pop(ticket.nonce, None)

    async def close(self) -> None:
        self._tickets.clear()
        if self._timer is not None:
            self._timer.cancel()
            await asyncio.gather(self._timer, return_exceptions=True)

    async def _renew_forever(self, lease_s: float) -> None:
        while True:
            await asyncio.sleep(lease_s / _RENEWALS_A_LEASE)
            tickets = list(self._tickets.values())
            for start in range(0, len(tickets), _RENEWED_AT_ONCE):
                try:
                    await self._renew(tickets[start : start + _RENEWED_AT_ONCE])
                except ContextsUnavailable as error:
                    _log.warning("leases of turns could not be renewed: %s", error)

    async def _renew(self, tickets: list[Ticket]) -> None:
        reply = await self._send(Renew(tickets))
        for nonce in reply.lost if isinstance(reply, Renewed) else ():
            if self._tickets.pop(nonce, None) is not None:
                self.lost += 1
                _log.warning("a turn's lease has lapsed before its end")
