"""The timers of the context manager: what lapses does so whether or not anybody calls."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from router.contexts.context import Moment
from router.contexts.table import Change, ContextTable
from router.core.errors import WarmpathError
from router.core.types import ContextId
from router.serve.context_commits import GroupCommit

_log = logging.getLogger(__name__)

_SWEPT_AT_ONCE = 1024
_COMPACTS_EVERY_S = 30.0

Clock = Callable[[], Moment]


class ContextSweeper:
    """Ends turns and waits, removes what has expired, gives back room. Two timers: one of them
    never waits for the journal. `tend_journal` compacts it and returns its size in bytes.
    """

    def __init__(
        self,
        table: ContextTable,
        commits: GroupCommit,
        tell_waiters: Callable[[], None],
        tend_journal: Callable[[], Awaitable[int]],
        clock: Clock,
    ) -> None:
        self._table = table
        self._commits = commits
        self._tell_waiters = tell_waiters
        self._tend_journal = tend_journal
        self._clock = clock
        self._tended_at: float | None = None
        self.journal_bytes = 0
        self.failed = 0
        sweeps = (self._end_lapsed, self._remove_expired)
        self._timers = [asyncio.create_task(self._repeat(sweep)) for sweep in sweeps]

    async def close(self) -> None:
        for timer in self._timers:
            timer.cancel()
        await asyncio.gather(*self._timers, return_exceptions=True)

    async def _repeat(self, sweep: Callable[[], Awaitable[None]]) -> None:
        while True:
            await asyncio.sleep(self._table.settings.sweep_interval_s)
            try:
                await sweep()
            except WarmpathError as error:
                _log.warning("what has expired stays until the next sweep: %s", error)
            except Exception:
                self.failed += 1
                _log.exception("a sweep failed; what has lapsed stays until the next")

    async def _end_lapsed(self) -> None:
        now = self._clock()
        self._end_silent_turns(now)
        self._table.turns.refuse_overdue(now)
        self._tell_waiters()
        if self._table.shelf.has_touched:
            self._commits.flush()

    def _end_silent_turns(self, now: Moment) -> None:
        shelf = self._table.shelf
        for context_id in shelf.silent_since(now.monotonic):
            context = shelf.get(context_id)
            if context is None or self._commits.is_busy(context_id):
                shelf.watch(context_id)
            else:
                self._table.turns.settled(context, now)

    async def _remove_expired(self) -> None:
        now = self._clock().monotonic
        due = self._table.shelf.idle_since(now)
        try:
            while due:
                await asyncio.gather(*map(self._expire, due[:_SWEPT_AT_ONCE]))
                del due[:_SWEPT_AT_ONCE]
        finally:
            for context_id in due:
                self._table.shelf.watch(context_id)
        await self._commits.make((), lambda: self._table.bury(self._clock()))
        if self._tended_at is None or now - self._tended_at > _COMPACTS_EVERY_S:
            self._tended_at = now
            self.journal_bytes = await self._tend_journal()

    async def _expire(self, context_id: ContextId) -> None:
        def plan() -> Change:
            return self._table.expire(context_id, self._clock())

        await self._commits.make((context_id,), plan)
