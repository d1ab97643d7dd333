"""One life of the context manager: table, journal and timer together; bytes in, bytes out.

No Ray. Belongs to one event loop; only the journal's writes leave it, for a thread of their own.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from router.contexts.context import Moment
from router.contexts.faults import failed
from router.contexts.journal import Journal
from router.contexts.messages import ContextView, OpenTurn
from router.contexts.records import Entry, read_rows
from router.contexts.restoring import restored
from router.contexts.settings import ContextSettings
from router.contexts.table import Change, ContextTable
from router.contexts.wire import (
    Abandon,
    Begin,
    Begun,
    Claims,
    Commit,
    Create,
    Delete,
    Done,
    Fork,
    Get,
    Operation,
    Page,
    Paged,
    Patch,
    Renew,
    Renewed,
    Reply,
    Viewed,
    decode_flight,
)
from router.core.errors import ContextBusy, ContextsUnavailable, WarmpathError
from router.serve.claims_answers import claimed
from router.serve.context_commits import GroupCommit
from router.serve.context_sweeps import Clock, ContextSweeper

_log = logging.getLogger(__name__)

T = TypeVar("T")


def host_clock() -> Moment:
    return Moment(time.monotonic(), time.time())


class ContextService:
    """Answers flights. `open_service` makes one; `on_end`: it can serve no more."""

    def __init__(
        self,
        table: ContextTable,
        journal: Journal,
        writer: ThreadPoolExecutor,
        on_end: Callable[[], None],
        clock: Clock = host_clock,
    ) -> None:
        self.table = table
        self._journal = journal
        self._writer = writer
        self._on_end = on_end
        self._clock = clock
        self._waiters: dict[int, asyncio.Future[OpenTurn]] = {}
        self.commits = GroupCommit(self._write, table.shelf, self)
        self.sweeper = ContextSweeper(
            table, self.commits, self.tell_waiters, self._tend_journal, clock
        )

    async def exchange(self, flight: bytes) -> list[Reply]:
        """The answers to a `wire.Flight`, once all of its operations have one."""
        return await asyncio.gather(*map(self._answer, decode_flight(flight).operations))

    async def close(self, reason: str) -> None:
        """Refuses all from here on; what has begun to be written is, then the journal is closed."""
        await self.sweeper.close()
        await self.commits.close(reason)
        for waiter in self._waiters.values():
            _refuse(waiter, ContextsUnavailable(reason))
        await self._on_writer(self._journal.close)
        self._writer.shutdown()

    def gauges(self) -> dict[str, int]:
        """What there is at the moment, by kind; sizes in bytes and tokens."""
        table = self.table
        return {
            "live": len(table.shelf),
            "busy": table.shelf.open_turns,
            "waiting": table.turns.waiting,
            "tombstones": len(table.tombstones),
            "history_bytes": table.shelf.pool.stored_bytes,
            "segments": table.shelf.pool.segments,
            "journal_bytes": self.sweeper.journal_bytes,
            **table.shelf.tenants.usage(),
        }

    def counts(self) -> dict[str, int]:
        """What has happened since the start of this life, by kind."""
        commits = self.commits.counters
        return {
            "expired": self.table.expired,
            "lapsed": self.table.turns.lapsed,
            "conflicts": self.table.turns.conflicts,
            "changes": commits.changes,
            "writes": commits.batches,
            "writes_refused": commits.refused,
            "writes_repeated": commits.repeated,
            "sweeps_failed": self.sweeper.failed,
        }

    def take_latencies(self) -> list[float]:
        """Seconds of each write since the last call, at most the latest few thousand."""
        latencies = list(self.commits.counters.latencies_s)
        self.commits.counters.latencies_s.clear()
        return latencies

    def confirmed(self, changes: Sequence[Change]) -> None:
        for change in changes:
            if change.freed is not None:
                self.table.turns.serve_next(change.freed, self._clock())
        self.tell_waiters()

    def ended(self) -> None:
        self._on_end()

    async def _answer(self, operation: Operation) -> Reply:
        try:
            return await self._perform(operation)
        except WarmpathError as error:
            return failed(error)

    async def _perform(self, operation: Operation) -> Reply:
        match operation:
            case Begin():
                return Begun(await self._begin(operation))
            case Renew():
                return await self._renew(operation)
            case Abandon(tenant, context_id, nonce):
                await self.commits.free(context_id)
                self.table.turns.abandon(tenant, context_id, nonce, self._clock())
                _refuse(self._waiters.pop(nonce, None), ContextBusy("The wait was given up."))
                self.tell_waiters()
                return Done()
            case Get(tenant, context_id):
                await self.commits.free(context_id)
                return Viewed(self.table.get(tenant, context_id, self._clock()))
            case Page():
                await self.commits.free()
                return Paged(self.table.page(operation, self._clock()))
            case Claims():
                return await claimed(operation, self.table.shelf, self._clock())
            case _:
                return _reply((await self._change(operation)).view)

    async def _change(self, operation: Create | Patch | Fork | Delete | Commit) -> Change:
        table, make, now = self.table, self.commits.make, self._clock
        match operation:
            case Create():
                ids = (operation.context_id,)
                return await make(ids, lambda: table.create(operation, now()))
            case Patch():
                ids = (operation.context_id,)
                return await make(ids, lambda: table.patch(operation, now()))
            case Fork():
                both = (operation.context_id, operation.child_id)
                return await make(both, lambda: table.fork(operation, now()))
            case Delete(tenant, context_id):
                return await make((context_id,), lambda: table.delete(tenant, context_id, now()))
            case Commit(ticket, result):
                ids = (ticket.context_id,)
                return await make(ids, lambda: table.commit(ticket, result, now()))

    async def _begin(self, begin: Begin) -> OpenTurn:
        await self.commits.free(begin.context_id)
        turn = self.table.begin(begin, self._clock())
        self.tell_waiters()
        if turn is not None:
            return turn
        # The same nonce again has lost its former answer: one future serves both.
        waiter = self._waiters.setdefault(begin.nonce, asyncio.get_running_loop().create_future())
        return await asyncio.shield(waiter)

    async def _renew(self, renew: Renew) -> Reply:
        lost = []
        for ticket in renew.tickets:
            await self.commits.free(ticket.context_id)
            if not self.table.turns.renew(ticket, self._clock()):
                lost.append(ticket.nonce)
        self.tell_waiters()
        return Renewed(lost)

    def tell_waiters(self) -> None:
        """Answers all whose wait for a turn is over."""
        for nonce, outcome in self.table.turns.take_ready():
            waiter = self._waiters.pop(nonce, None)
            if not isinstance(outcome, OpenTurn):
                _refuse(waiter, outcome)
            elif waiter is not None and not waiter.done():
                waiter.set_result(outcome)

    async def _write(self, entries: Sequence[Entry]) -> None:
        await self._on_writer(lambda: self._journal.write(entries))

    async def _tend_journal(self) -> int:
        def compact_and_measure() -> int:
            self._journal.compact()
            return self._journal.size_bytes()

        return await self._on_writer(compact_and_measure)

    async def _on_writer(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._writer, work)


def _refuse(waiter: "asyncio.Future[OpenTurn] | None", error: WarmpathError) -> None:
    if waiter is not None and not waiter.done():
        waiter.set_exception(error)
        waiter.exception()


def _reply(view: ContextView | None) -> Reply:
    return Done() if view is None else Viewed(view)


async def open_service(
    journal: Journal,
    settings: ContextSettings,
    on_end: Callable[[], None],
    clock: Clock = host_clock,
) -> ContextService:
    """Claims the journal, reads all of it and serves. Raises `JournalError`."""
    loop = asyncio.get_running_loop()
    writer = ThreadPoolExecutor(1, thread_name_prefix="journal")

    def read() -> tuple[ContextTable, list[Entry]]:
        epoch = journal.claim()
        return restored(read_rows(journal.rows()), settings, epoch, clock())

    table, orphans = await loop.run_in_executor(writer, read)
    if orphans:
        await loop.run_in_executor(writer, journal.write, orphans)
    return ContextService(table, journal, writer, on_end, clock)
