"""The contract of contexts as a state machine: what each call changes and what must be written.

Pure: time and ids are arguments. What must be durable comes as a `Change`, in effect at once and to
be written before anybody hears of it; `undo` takes it back where the journal refused. Until either,
the caller lets nobody else near that context.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from router.contexts import records
from router.contexts.context import Context, Moment, has_expired, used
from router.contexts.history import HistoryPool, Strand
from router.contexts.messages import (
    TOKEN_BYTES,
    ContextPage,
    ContextView,
    OpenTurn,
    Ticket,
    TurnResult,
    Usage,
)
from router.contexts.records import Entry
from router.contexts.settings import ContextSettings
from router.contexts.shelf import Shelf
from router.contexts.tombstones import Tombstone, Tombstones
from router.contexts.turns import Turns
from router.contexts.wire import Begin, Create, Fork, Page, Patch
from router.core.errors import (
    ContextBusy,
    ContextExpired,
    ContextNotFound,
    MalformedMessage,
    TurnConflict,
)
from router.core.types import ContextId, Tenant

_BURIED_AT_ONCE = 1024


class Change(NamedTuple):
    """`entries` are to be written; without any there is nothing to wait for.

    `freed` is the context whose turn it ends: once durable, `turns.serve_next` is due for it.
    """

    entries: list[Entry]
    undo: Callable[[], object]
    view: ContextView | None = None
    freed: ContextId | None = None


class ContextTable:
    """One life of the context manager in memory; `epoch` is its number, `born_at` monotonic."""

    def __init__(
        self, settings: ContextSettings, epoch: int, born_at: float, next_segment_id: int = 1
    ) -> None:
        self.settings = settings
        self.shelf = Shelf(settings, HistoryPool(next_segment_id))
        self.turns = Turns(self.shelf, settings, epoch, born_at)
        self.tombstones = Tombstones(settings.max_contexts)
        self.expired = 0

    def create(self, create: Create, now: Moment) -> Change:
        """The same id again is answered as the first time. Raises `ContextQuotaExceeded`."""
        known = self._known(create.tenant, create.context_id)
        if known is not None:
            return known
        new = create.new
        history = self.shelf.pool.begin(new.tokens, new.document)
        self._check_room(create.tenant, history.tokens)
        context = Context(
            create.context_id,
            create.tenant,
            new.model,
            new.kind,
            history,
            created_at=now.wall,
            last_used_at=now.wall,
            idle_until=now.monotonic + new.ttl_s,
            expires_at=now.wall + new.ttl_s,
            ttl_s=new.ttl_s,
            metadata=dict(new.metadata),
            usage=new.usage,
            replica_id=new.replica_id,
            claims=new.claims,
        )
        return self._put(context)

    def get(self, tenant: Tenant, context_id: ContextId, now: Moment) -> ContextView:
        return self.find(tenant, context_id, now).view()

    def page(self, page: Page, now: Moment) -> ContextPage:
        ids, has_more = self.shelf.tenants.page(page.tenant, page.limit, page.after)
        contexts = [context for i in ids if (context := self.shelf.get(i)) is not None]
        return ContextPage([c.view() for c in contexts if not has_expired(c, now)], has_more)

    def patch(self, patch: Patch, now: Moment) -> Change:
        old = self.find(patch.tenant, patch.context_id, now)
        ttl_s = old.ttl_s if patch.ttl_s is None else patch.ttl_s
        metadata = old.metadata if patch.metadata is None else dict(patch.metadata)
        return self._put(used(replace(old, ttl_s=ttl_s, metadata=metadata), now))

    def fork(self, fork: Fork, now: Moment) -> Change:
        """Of the last committed turn, during another, too. The parent's idle clock goes on."""
        parent = self.find(fork.tenant, fork.context_id, now)
        known = self._known(fork.tenant, fork.child_id)
        if known is not None:
            return known
        self._check_room(fork.tenant, parent.tokens)
        child = replace(
            parent,
            context_id=fork.child_id,
            created_at=now.wall,
            ttl_s=parent.ttl_s if fork.ttl_s is None else fork.ttl_s,
            metadata=parent.metadata if fork.metadata is None else dict(fork.metadata),
            usage=Usage(parent.tokens, 0, parent.tokens),
            last_nonce=None,
            turn=None,
        )
        return self._put(used(child, now))

    def delete(self, tenant: Tenant, context_id: ContextId, now: Moment) -> Change:
        context = self.find(tenant, context_id, now)
        if context.turn is not None:
            raise ContextBusy("A turn is under way on this context.")
        restore = self.shelf.remember(context_id)
        return Change(self.shelf.drop(context), restore)

    def begin(self, begin: Begin, now: Moment) -> OpenTurn | None:
        """None: it waits for another turn's end; `turns.take_ready` tells what became of it."""
        context = self.find(begin.tenant, begin.context_id, now)
        return self.turns.begin(context, begin, now)

    def commit(self, ticket: Ticket, result: TurnResult, now: Moment) -> Change:
        """Ends the turn. The same ticket again is answered as the first time."""
        context = self.find(ticket.tenant, ticket.context_id, now)
        if context.last_nonce == ticket.nonce:
            return _unchanged(context)
        if not self.turns.is_entitled(context, ticket, now):
            raise TurnConflict("The turn's lease had lapsed before its end; it left no trace.")
        ids, document = _strands(context, result)
        after = replace(
            context,
            history=self.shelf.pool.extend(context.history, ids, document),
            turns=context.turns + 1,
            usage=result.usage,
            replica_id=result.replica_id,
            last_nonce=ticket.nonce,
            turn=None,
            claims=result.claims,
        )
        return self._put(used(after, now))._replace(freed=context.context_id)

    def expire(self, context_id: ContextId, now: Moment) -> Change:
        """Leaves a tombstone where the idle clock has run down; else nothing happens."""
        context = self.shelf.get(context_id)
        if context is None or not has_expired(context, now):
            self.shelf.watch(context_id)
            return Change([], lambda: None)
        expired_at = now.wall_at(context.idle_until)
        until = context.idle_until + self.settings.tombstone_s
        self.tombstones.set(context_id, Tombstone(context.tenant, until))
        self.expired += 1
        stone = records.tombstone_entry(context_id, context.tenant, expired_at)
        restore = self.shelf.remember(context_id)
        return Change([*self.shelf.drop(context), stone], lambda: self._revive(context_id, restore))

    def bury(self, now: Moment) -> Change:
        """Forgets tombstones whose time is over; some at a time."""
        due = self.tombstones.due(now.monotonic, _BURIED_AT_ONCE)
        for context_id in due:
            self.tombstones.discard(context_id)
        return Change([records.no_tombstone(context_id) for context_id in due], lambda: None)

    def find(self, tenant: Tenant, context_id: ContextId, now: Moment) -> Context:
        """Raises `ContextExpired` to its owner and else `ContextNotFound`."""
        stone = self.tombstones.get(context_id, now.monotonic)
        if stone is not None and stone.tenant == tenant:
            raise ContextExpired("This context has expired.")
        context = self.shelf.get(context_id)
        if context is None or context.tenant != tenant:
            raise ContextNotFound
        context = self.turns.settled(context, now)
        if has_expired(context, now):
            raise ContextExpired("This context has expired.")
        return context

    def _known(self, tenant: Tenant, context_id: ContextId) -> Change | None:
        context = self.shelf.get(context_id)
        if context is None:
            return None
        if context.tenant != tenant:
            raise MalformedMessage("a new context's id is taken")
        return _unchanged(context)

    def _check_room(self, tenant: Tenant, tokens: int) -> None:
        self.shelf.tenants.check_room(tenant, 1, tokens)
        self.shelf.tenants.check_space(len(self.shelf) + 1, self.shelf.pool.stored_bytes)

    def _put(self, context: Context) -> Change:
        restore = self.shelf.remember(context.context_id)
        return Change(self.shelf.put(context), restore, context.view())

    def _revive(self, context_id: ContextId, restore: Callable[[], None]) -> None:
        self.tombstones.discard(context_id)
        self.expired -= 1
        restore()


def _unchanged(context: Context) -> Change:
    return Change([], lambda: None, context.view())


def _strands(context: Context, result: TurnResult) -> tuple[Strand, Strand]:
    ids, document = context.history.ids.length, context.history.document.length
    if result.keep_tokens is not None:
        ids = result.keep_tokens * TOKEN_BYTES
    if result.keep_document_bytes is not None:
        document = result.keep_document_bytes
    return Strand(ids, result.tail), Strand(document, result.document_tail)
