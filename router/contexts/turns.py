"""The life of a turn: one at a time on each context, under a lease, with others waiting for it."""

from dataclasses import replace
from typing import NamedTuple

from router.contexts.context import Context, Moment, Turn, has_expired, used
from router.contexts.history import document_of, ids_of
from router.contexts.messages import OpenTurn, Ticket
from router.contexts.settings import ContextSettings
from router.contexts.shelf import Shelf
from router.contexts.waiting import WaitingTurns
from router.contexts.wire import Begin
from router.core.errors import (
    ContextBusy,
    ContextExpired,
    ContextKindMismatch,
    ContextNotFound,
    ModelMismatch,
    TurnConflict,
    WarmpathError,
)
from router.core.types import ContextId, Tenant


class Waited(NamedTuple):
    """What became of a turn that waited."""

    nonce: int
    outcome: OpenTurn | WarmpathError


class Turns:
    """Begins and ends turns on a shelf's contexts. A turn's rows need not be waited for.

    For one lease after `born_at`, monotonic, turns of an earlier life (a smaller epoch) go on: a
    restart of the manager is nothing that their clients should notice.
    """

    def __init__(self, shelf: Shelf, settings: ContextSettings, epoch: int, born_at: float) -> None:
        self._shelf = shelf
        self._settings = settings
        self._epoch = epoch
        self._adopts_until = born_at + settings.lease_s
        self._waiting = WaitingTurns(settings.max_waiting)
        self._ready: list[Waited] = []
        self.lapsed = 0
        self.conflicts = 0

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def begin(self, context: Context, begin: Begin, now: Moment) -> OpenTurn | None:
        """None: it waits, and `take_ready` will tell. The same nonce again is the same turn."""
        if context.turn is not None and context.turn.nonce == begin.nonce:
            return self._opened(context, begin.nonce)
        if begin.model != context.model:
            raise ModelMismatch("This context belongs to another model.", param="model")
        if begin.kind != context.kind:
            raise ContextKindMismatch(f"This context holds a {context.kind}.")
        if begin.expected_turns is not None and context.turns > begin.expected_turns:
            raise self._conflict(context)
        if context.turn is None:
            return self._start(context, begin, now)
        if begin.wait_s <= 0:
            self.conflicts += 1
            raise ContextBusy("Another turn is under way on this context.")
        wait_s = min(begin.wait_s, self._settings.max_wait_s)
        self._waiting.add(begin, now.monotonic + wait_s)
        return None

    def is_entitled(self, context: Context, ticket: Ticket, now: Moment) -> bool:
        """Whether the ticket's turn is the one under way, or may be again."""
        if context.turn is not None:
            return context.turn.nonce == ticket.nonce
        return (
            ticket.epoch < self._epoch
            and ticket.turns == context.turns
            and now.monotonic < self._adopts_until
        )

    def renew(self, ticket: Ticket, now: Moment) -> bool:
        """False where there is no such turn (any more)."""
        context = self._shelf.get(ticket.context_id)
        if context is None or context.tenant != ticket.tenant:
            return False
        context = self.settled(context, now)
        if has_expired(context, now) or not self.is_entitled(context, ticket, now):
            return False
        turn = Turn(ticket.nonce, now.monotonic + self._settings.lease_s)
        put = self._shelf.put_lightly if context.turn is None else self._shelf.renew
        put(replace(context, turn=turn))
        return True

    def abandon(self, tenant: Tenant, context_id: ContextId, nonce: int, now: Moment) -> None:
        """Ends the turn, or its wait, without a trace."""
        self._waiting.remove(context_id, nonce)
        context = self._shelf.get(context_id)
        if context is None or context.tenant != tenant:
            return
        context = self.settled(context, now)
        if context.turn is not None and context.turn.nonce == nonce:
            self._shelf.put_lightly(used(replace(context, turn=None), now))
            self.serve_next(context_id, now)

    def settled(self, context: Context, now: Moment) -> Context:
        """Ends a turn whose lease is over, as of the moment when it was."""
        if context.turn is None or context.turn.lease_until > now.monotonic:
            return context
        ended_at = context.turn.lease_until
        then = Moment(ended_at, now.wall_at(ended_at))
        ended = used(replace(context, turn=None), then)
        self._shelf.put_lightly(ended)
        self.lapsed += 1
        self.serve_next(context.context_id, now)
        return self._shelf.get(context.context_id) or ended

    def serve_next(self, context_id: ContextId, now: Moment) -> None:
        """Lets the next of those that wait begin; to be called when a turn's end is durable."""
        while (waiter := self._waiting.pop(context_id)) is not None:
            context = self._shelf.get(context_id)
            try:
                opened = self._admit(context, waiter.begin, waiter.until, now)
            except WarmpathError as error:
                self._ready.append(Waited(waiter.begin.nonce, error))
            else:
                self._ready.append(Waited(waiter.begin.nonce, opened))
                return

    def refuse_overdue(self, now: Moment) -> None:
        """Ends the wait of all whose time is over."""
        for begin in self._waiting.overdue(now.monotonic):
            self.conflicts += 1
            busy = ContextBusy("The other turn on this context did not end in time.")
            self._ready.append(Waited(begin.nonce, busy))

    def take_ready(self) -> list[Waited]:
        """What became of turns that waited, each once."""
        ready, self._ready = self._ready, []
        return ready

    def _admit(self, context: Context | None, begin: Begin, until: float, now: Moment) -> OpenTurn:
        if context is None:
            raise ContextNotFound
        if has_expired(context, now):
            raise ContextExpired("This context has expired.")
        if until <= now.monotonic:
            raise ContextBusy("The other turn on this context did not end in time.")
        return self._start(context, begin, now)

    def _start(self, context: Context, begin: Begin, now: Moment) -> OpenTurn:
        if begin.expected_turns not in (None, context.turns):
            raise self._conflict(context)
        self._shelf.tenants.check_room(context.tenant, contexts=0, tokens=1)
        self._shelf.tenants.check_space(len(self._shelf), self._shelf.pool.stored_bytes)
        turn = Turn(begin.nonce, now.monotonic + self._settings.lease_s)
        self._shelf.put_lightly(replace(used(context, now), turn=turn))
        return self._opened(context, begin.nonce)

    def _opened(self, context: Context, nonce: int) -> OpenTurn:
        return OpenTurn(
            Ticket(context.tenant, context.context_id, context.turns, self._epoch, nonce),
            ids_of(context.history),
            document_of(context.history),
            context.turns,
            context.replica_id,
            self._settings.lease_s,
        )

    def _conflict(self, context: Context) -> TurnConflict:
        self.conflicts += 1
        return TurnConflict(f"This context has {context.turns} committed turns.")
