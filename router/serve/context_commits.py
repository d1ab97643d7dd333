"""Group commit: what changes is written in batches, and nobody hears of it before it is durable.

One context changes at a time; all that change while one write is under way are the next.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from router.contexts.journal import merged
from router.contexts.records import Entry
from router.contexts.shelf import Shelf
from router.contexts.table import Change
from router.core.errors import (
    ContextsUnavailable,
    JournalError,
    JournalFull,
    JournalLost,
)
from router.core.types import ContextId

_log = logging.getLogger(__name__)

_MAX_WAITING = 16_384
_MAX_LATENCIES = 4096
_REPEAT_AFTER_S = 0.25

Write = Callable[[Sequence[Entry]], Awaitable[None]]


class Ends(Protocol):
    """Who hears of what has become of changes, between one step of the event loop and the next."""

    def confirmed(self, changes: Sequence[Change]) -> None:
        """They are durable; nobody else has been told yet."""
        ...

    def ended(self) -> None:
        """Nothing is written any more: another life has taken over, or the journal is damaged."""
        ...


@dataclass(slots=True)
class CommitCounters:
    """Since the start. `latencies_s` are of the batches since they were last taken away."""

    batches: int = 0
    changes: int = 0
    entries: int = 0
    refused: int = 0
    repeated: int = 0
    latencies_s: deque[float] = field(default_factory=lambda: deque(maxlen=_MAX_LATENCIES))


@dataclass(slots=True)
class _Batch:
    durable: "asyncio.Future[None]"
    changes: list[Change] = field(default_factory=list)
    context_ids: list[ContextId] = field(default_factory=list)
    touched: list[ContextId] = field(default_factory=list)
    began_at: float = 0.0


class GroupCommit:
    """Takes changes of a shelf to a journal, touched rows along with them; in one event loop."""

    def __init__(self, write: Write, shelf: Shelf, ends: Ends) -> None:
        self._write = write
        self._shelf = shelf
        self._ends = ends
        self._next = _Batch(asyncio.get_running_loop().create_future())
        self._busy: dict[ContextId, asyncio.Future[None]] = {}
        self._wake = asyncio.Event()
        self._waiting = 0
        self._end: str | None = None
        self.counters = CommitCounters()
        self._task = asyncio.create_task(self._run())

    async def free(self, *context_ids: ContextId) -> None:
        """Returns when none of them has a change under way: what is seen then is durable."""
        while True:
            under_way = [self._busy[i] for i in context_ids if i in self._busy]
            if not under_way:
                break
            if self._waiting >= _MAX_WAITING:
                raise ContextsUnavailable("The context manager is overloaded.")
            self._waiting += 1
            try:
                await asyncio.wait(under_way)
            finally:
                self._waiting -= 1
        if self._end is not None:
            raise ContextsUnavailable(self._end)

    def is_busy(self, context_id: ContextId) -> bool:
        return context_id in self._busy

    async def make(self, context_ids: Iterable[ContextId], plan: Callable[[], Change]) -> Change:
        """Plans once nothing is under way for these contexts; returns when it is durable.

        Raises what `plan` raises, and `ContextsUnavailable` where the journal refused.
        """
        context_ids = tuple(context_ids)
        await self.free(*context_ids)
        change = plan()
        if change.entries:
            await asyncio.shield(self._add(change, context_ids))
        return change

    def flush(self) -> None:
        """Starts a write even where nobody waits for one."""
        self._wake.set()

    async def close(self, reason: str) -> None:
        """Refuses all from here on; returns when what was under way and touched is written."""
        self._end = self._end or reason
        while self._busy:
            await asyncio.wait(set(self._busy.values()))
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        rows = self._shelf.rows(self._shelf.take_touched())
        try:
            await self._write(rows)
        except JournalError as error:
            _log.warning("the last uses of contexts are not in the journal: %s", error)

    def _add(self, change: Change, context_ids: tuple[ContextId, ...]) -> "asyncio.Future[None]":
        batch = self._next
        if not batch.changes:
            batch.began_at = time.monotonic()
        batch.changes.append(change)
        batch.context_ids += context_ids
        for context_id in context_ids:
            self._busy[context_id] = batch.durable
        self._wake.set()
        return batch.durable

    async def _run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            batch = self._next
            self._next = _Batch(asyncio.get_running_loop().create_future())
            batch.touched = self._shelf.take_touched()
            rows = self._shelf.rows(batch.touched)
            entries = merged([rows, *(change.entries for change in batch.changes)])
            if not entries:
                continue
            try:
                await self._write_surely(entries)
            except Exception as error:
                self._refuse(batch, error)
            else:
                self._confirm(batch, len(entries))

    async def _write_surely(self, entries: Sequence[Entry]) -> None:
        """Repeats a write of which it is not known whether it was kept, until it is known."""
        while True:
            try:
                return await self._write(entries)
            except JournalLost as error:
                if not self.counters.repeated % 40:
                    _log.error("the journal of contexts cannot be reached: %s", error)
                self.counters.repeated += 1
                await asyncio.sleep(_REPEAT_AFTER_S)

    def _confirm(self, batch: _Batch, entries: int) -> None:
        counters = self.counters
        counters.batches += 1
        counters.changes += len(batch.changes)
        counters.entries += entries
        if batch.changes:
            counters.latencies_s.append(time.monotonic() - batch.began_at)
        self._release(batch)
        self._ends.confirmed(batch.changes)
        batch.durable.set_result(None)

    def _refuse(self, batch: _Batch, error: Exception) -> None:
        """What was planned on top of a batch falls with it."""
        _log.error("the journal of contexts refuses a write", exc_info=error)
        self.counters.refused += 1
        later, self._next = self._next, _Batch(asyncio.get_running_loop().create_future())
        if isinstance(error, JournalFull):
            reason = "There is no room to keep this; nothing was changed."
        else:
            reason = "Contexts cannot be kept at the moment; nothing was changed."
            self._end = reason
        unavailable = ContextsUnavailable(reason)
        self._fail(later, unavailable)
        self._fail(batch, unavailable)
        if self._end is not None:
            self._ends.ended()

    def _fail(self, batch: _Batch, error: ContextsUnavailable) -> None:
        for change in reversed(batch.changes):
            change.undo()
        self._shelf.touch(batch.touched)
        self._release(batch)
        if not batch.durable.done() and batch.changes:
            batch.durable.set_exception(error)
            batch.durable.exception()

    def _release(self, batch: _Batch) -> None:
        for context_id in batch.context_ids:
            if self._busy.get(context_id) is batch.durable:
                del self._busy[context_id]
