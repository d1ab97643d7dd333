"""All contexts of an application, each replaced as a whole: one place where books are kept.

Who replaces a context gets the rows that make it durable; until they are, the replacement can be
taken back. Nothing else decides here.
"""

from collections.abc import Callable, Iterator

from router.contexts import records
from router.contexts.context import Context
from router.contexts.history import HistoryPool, Segment
from router.contexts.quotas import TenantBook
from router.contexts.records import Entry
from router.contexts.settings import ContextSettings
from router.core.lapses import LapseQueue
from router.core.types import ContextId


class Shelf:
    """Contexts by id with all that is derived from them: holdings, segments, deadlines.

    A context put lightly is touched: its row is out of date in what may be lost with a process.
    """

    def __init__(self, settings: ContextSettings, pool: HistoryPool) -> None:
        self.pool = pool
        self.tenants = TenantBook(settings)
        self._touched: dict[ContextId, None] = {}
        self._contexts: dict[ContextId, Context] = {}
        self._idle: LapseQueue[ContextId] = LapseQueue()
        self._leased: LapseQueue[ContextId] = LapseQueue()

    def __len__(self) -> int:
        return len(self._contexts)

    def __iter__(self) -> Iterator[Context]:
        return iter(self._contexts.values())

    @property
    def open_turns(self) -> int:
        return len(self._leased)

    def get(self, context_id: ContextId) -> Context | None:
        return self._contexts.get(context_id)

    def put(self, context: Context) -> list[Entry]:
        """New or in the place of its former self. Returns the rows that record it."""
        old = self._contexts.get(context.context_id)
        fresh, unneeded = self._exchange(old, context)
        self._contexts[context.context_id] = context
        if old is None:
            self.tenants.add(context)
        else:
            self.tenants.grow(context.tenant, context.tokens - old.tokens)
        self._schedule(context)
        self._touched.pop(context.context_id, None)
        return [
            records.context_entry(context),
            *map(records.segment_entry, fresh),
            *map(records.no_segment, unneeded),
        ]

    def renew(self, context: Context) -> None:
        """With nothing new but its turn's lease, which no row has."""
        self._contexts[context.context_id] = context
        self._schedule(context)

    def put_lightly(self, context: Context) -> None:
        """With the same history, where it is enough that the row follows soon."""
        self.renew(context)
        self._touched[context.context_id] = None

    def drop(self, context: Context) -> list[Entry]:
        """Returns the rows that record its absence."""
        _, unneeded = self._exchange(context, None)
        del self._contexts[context.context_id]
        self.tenants.remove(context)
        self._unschedule(context.context_id)
        self._touched.pop(context.context_id, None)
        return [records.no_context(context.context_id), *map(records.no_segment, unneeded)]

    def remember(self, context_id: ContextId) -> Callable[[], None]:
        """Returns what brings back the context, or its absence, as it is at this moment."""
        context, is_touched = self._contexts.get(context_id), context_id in self._touched

        def restore() -> None:
            present = self._contexts.get(context_id)
            if context is not None:
                self.put(context)
            elif present is not None:
                self.drop(present)
            if is_touched:
                self.touch([context_id])

        return restore

    @property
    def has_touched(self) -> bool:
        return bool(self._touched)

    def take_touched(self) -> list[ContextId]:
        """Those whose rows are to be written again, each once; `touch` where that failed."""
        touched, self._touched = self._touched, {}
        return list(touched)

    def touch(self, context_ids: list[ContextId]) -> None:
        self._touched |= {i: None for i in context_ids if i in self._contexts}

    def rows(self, context_ids: list[ContextId]) -> list[Entry]:
        contexts = (self._contexts.get(context_id) for context_id in context_ids)
        return [records.context_entry(context) for context in contexts if context is not None]

    def idle_since(self, now: float) -> list[ContextId]:
        """Takes out all whose idle clock has run down; whatever becomes of them puts them back."""
        return self._idle.lapsed(now)

    def silent_since(self, now: float) -> list[ContextId]:
        """Takes out all whose turn's lease has ended."""
        return self._leased.lapsed(now)

    def watch(self, context_id: ContextId) -> None:
        """Puts back what was taken out and stays as it is."""
        context = self._contexts.get(context_id)
        if context is not None:
            self._schedule(context)

    def _exchange(
        self, old: Context | None, new: Context | None
    ) -> tuple[list[Segment], list[Segment]]:
        if old is not None and new is not None and old.history is new.history:
            return [], []
        fresh = [] if new is None else self.pool.hold(new.history)
        unneeded = [] if old is None else self.pool.release(old.history)
        return fresh, unneeded

    def _schedule(self, context: Context) -> None:
        self._unschedule(context.context_id)
        if context.turn is None:
            self._idle.add(context.context_id, context.idle_until)
        else:
            self._leased.add(context.context_id, context.turn.lease_until)

    def _unschedule(self, context_id: ContextId) -> None:
        for queue in (self._idle, self._leased):
            if context_id in queue:
                queue.remove(context_id)
