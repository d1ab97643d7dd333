"""Plays a table of contexts against the contract's model, with crashes at every write."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TypeVar

import numpy as np

from router.contexts.context import Moment
from router.contexts.history import Segment, document_of, ids_of
from router.contexts.messages import Kind, NewContext, Ticket, TurnResult
from router.contexts.records import Entry, read_rows
from router.contexts.restoring import restored
from router.contexts.settings import ContextSettings
from router.contexts.table import Change, ContextTable
from router.contexts.wire import Begin, Create, Fork, Page, Patch
from router.core.errors import ContextBusy, TurnConflict, WarmpathError
from router.core.types import ContextId, Tenant
from tests.unit.router.contexts.contract_model import (
    FLOOR_S,
    LEASE_S,
    TOMBSTONE_S,
    WAITERS,
    Model,
    Told,
)

T = TypeVar("T")


class Fate(Enum):
    """What becomes of one write."""

    KEPT = "kept"
    REFUSED = "refused"
    CRASH_BEFORE = "crash before"
    CRASH_AFTER = "crash after"


Fates = Callable[[], Fate]


def pack(tokens: Sequence[int]) -> bytes:
    return np.array(tokens, dtype="<u4").tobytes()


@dataclass(frozen=True)
class Held:
    """A client's open turn: what it has been told."""

    name: str
    ticket: Ticket


class Rig:
    """Every call goes to both sides, which must agree; `fate` decides each write's."""

    def __init__(self, fate: Fates, max_contexts: int = 8, max_tokens: int = 200) -> None:
        self.settings = ContextSettings(
            "app",
            lease_s=LEASE_S,
            max_contexts_per_tenant=max_contexts,
            max_tokens_per_tenant=max_tokens,
            max_waiting=WAITERS,
            tombstone_s=TOMBSTONE_S,
            restart_floor_s=FLOOR_S,
        )
        self.fate = fate
        self.now = Moment(1000.0, 5_000_000.0)
        self.journal: dict[str, bytes] = {}
        self.stones_kept: dict[str, tuple[str, float]] = {}
        self.table = ContextTable(self.settings, 1, self.now.monotonic)
        self.model = Model(max_contexts, max_tokens)
        self.model.born_at = self.now.monotonic
        self.held: list[Held] = []
        self.names = 0
        self.crashes = 0

    def pass_time(self, seconds: float) -> None:
        self.now = Moment(self.now.monotonic + seconds, self.now.wall + seconds)

    def create(self, tenant: str, tokens: list[int], document: bytes, ttl_s: int) -> None:
        name = self._fresh()
        new = NewContext("m", Kind.CHAT, pack(tokens), document, ttl_s, {"n": name})

        def told() -> None:
            self.model.check_room(tenant, len(tokens))
            now = self.now
            self.model.live[name] = Told(
                tenant, tokens, document, ttl_s, {"n": name}, now.wall, now.monotonic + ttl_s
            )

        self._durable(
            lambda: self.table.create(Create(Tenant(tenant), ContextId(name), new), self.now),
            told,
            name,
        )

    def fork(self, tenant: str, parent: str, ttl_s: int | None) -> None:
        name = self._fresh()
        fork = Fork(Tenant(tenant), ContextId(parent), ContextId(name), ttl_s, None)

        def told() -> None:
            origin = self.model.find(tenant, parent, self.now)
            self.model.check_room(tenant, len(origin.tokens))
            child = copy.deepcopy(origin)
            child.queue, child.busy, child.last_nonce = [], None, None
            child.ttl_s = origin.ttl_s if ttl_s is None else ttl_s
            self.model.use(child, self.now)
            self.model.live[name] = child

        self._durable(lambda: self.table.fork(fork, self.now), told, name)

    def patch(self, tenant: str, name: str, ttl_s: int | None, note: str | None) -> None:
        metadata = None if note is None else {"note": note}
        patch = Patch(Tenant(tenant), ContextId(name), ttl_s, metadata)

        def told() -> None:
            context = self.model.find(tenant, name, self.now)
            context.ttl_s = context.ttl_s if ttl_s is None else ttl_s
            context.metadata = context.metadata if metadata is None else metadata
            self.model.use(context, self.now)

        self._durable(lambda: self.table.patch(patch, self.now), told, name)

    def delete(self, tenant: str, name: str) -> None:
        def told() -> None:
            if self.model.find(tenant, name, self.now).busy is not None:
                raise ContextBusy("")
            del self.model.live[name]

        self._durable(
            lambda: self.table.delete(Tenant(tenant), ContextId(name), self.now), told, name
        )

    def begin(
        self, tenant: str, name: str, expected: int | None, wait_s: float, nonce: int
    ) -> None:
        begin = Begin(Tenant(tenant), ContextId(name), nonce, "m", Kind.CHAT, expected, wait_s)
        turn, tokens = self._same(
            lambda: self.table.begin(begin, self.now),
            lambda: self.model.begin(tenant, name, nonce, expected, wait_s, self.now),
        )
        assert (turn is None) == (tokens is None)
        if turn is not None:
            assert turn.tokens == pack(tokens or ())
            self.held.append(Held(name, turn.ticket))
        self._after()

    def renew(self, held: Held) -> None:
        renewed = self.table.turns.renew(held.ticket, self.now)
        told = self.model.live.get(held.name)
        expected = False
        if told is not None:
            self.model.end_if_silent(held.name, self.now)
            is_over = told.busy is None and told.idle_until <= self.now.monotonic
            expected = not is_over and self._may_end(told, held.ticket)
            if expected:
                if told.busy is None:
                    self.model.dirty.add(held.name)
                told.busy, told.until = held.ticket.nonce, self.now.monotonic + LEASE_S
        assert renewed == expected
        self._after()

    def abandon(self, held: Held) -> None:
        ticket = held.ticket
        self.table.turns.abandon(ticket.tenant, ticket.context_id, ticket.nonce, self.now)
        told = self.model.live.get(held.name)
        if told is not None:
            told.queue = [waiter for waiter in told.queue if waiter[0] != ticket.nonce]
            self.model.end_if_silent(held.name, self.now)
            if told.busy == ticket.nonce:
                self.model.use(told, self.now)
                self.model.end(held.name, self.now)
        self._after()

    def commit(self, held: Held, keep: float, tail: list[int], document: bytes) -> None:
        """Keeps a share of what there is; 1.0 keeps all."""
        ticket, told = held.ticket, self.model.live.get(held.name)
        length = 0 if told is None else len(told.tokens)
        kept = None if keep >= 1.0 else int(length * keep)
        kept_document = None if keep >= 1.0 else 0
        result = TurnResult(pack(tail), document, kept, kept_document)

        def tell() -> None:
            told = self.model.find(ticket.tenant, held.name, self.now)
            if told.last_nonce == ticket.nonce:
                return
            if not self._may_end(told, ticket):
                raise TurnConflict("")
            told.tokens = told.tokens[:kept] + tail
            told.document = told.document[:kept_document] + document
            told.turns += 1
            told.last_nonce, told.busy = ticket.nonce, None
            self.model.use(told, self.now)

        self._durable(lambda: self.table.commit(ticket, result, self.now), tell, held.name)

    def sweep(self) -> None:
        """As the timers of the manager do."""
        for context_id in self.table.shelf.silent_since(self.now.monotonic):
            context = self.table.shelf.get(context_id)
            assert context is not None
            self.table.turns.settled(context, self.now)
        self.table.turns.refuse_overdue(self.now)
        self.model.sweep(self.now)
        self._after(in_order=False)
        due = self.table.shelf.idle_since(self.now.monotonic)
        assert sorted(due) == sorted(self.model.expired(self.now))
        for context_id in due:
            if self._expire(context_id):
                return
        self._bury()

    def flush(self) -> bool:
        """Writes touched rows; True where the manager crashed over it."""
        touched = self.table.shelf.take_touched()
        assert set(touched) == self.model.dirty & set(self.model.live)
        fate = self.fate()
        if fate in (Fate.KEPT, Fate.CRASH_AFTER):
            self._keep(self.table.shelf.rows(touched))
            for name in touched:
                self.model.save(name)
        if fate is Fate.REFUSED:
            self.table.shelf.touch(touched)
        return self._crashed(fate)

    def crash(self) -> None:
        self.crashes += 1
        self.now = Moment(self.now.monotonic / 2 + 7, self.now.wall)
        contents = read_rows(self.journal.items())
        epoch = self.model.epoch + 1
        self.table, orphans = restored(contents, self.settings, epoch, self.now)
        assert orphans == [], "a segment that nobody needs was left in the journal"
        stones = {}
        for name, (tenant, expired_at) in self.stones_kept.items():
            left_s = TOMBSTONE_S - (self.now.wall - expired_at)
            stones[name] = (tenant, self.now.monotonic + left_s)
        self.model.crash(stones, self.now)

    def check(self) -> None:
        """Nothing differs, nothing is lost, nothing is left over."""
        shelf, model = self.table.shelf, self.model
        assert {context.context_id for context in shelf} == set(model.live)
        for context in shelf:
            self.check_one(context.context_id)
        reachable = _reachable([context.history for context in shelf])
        assert shelf.pool.segments == len(reachable)
        assert shelf.pool.stored_bytes == sum(segment.own_bytes for segment in reachable)
        assert shelf.tenants.usage()["tokens"] == sum(len(t.tokens) for t in model.live.values())
        assert shelf.open_turns == sum(told.busy is not None for told in model.live.values())
        assert self.table.turns.waiting == sum(len(told.queue) for told in model.live.values())
        kept = read_rows(self.journal.items())
        assert set(kept.contexts) == set(model.kept)
        assert set(kept.segments) == {
            segment.segment_id
            for segment in _reachable([kept.segments[r.segment_id] for r in kept.contexts.values()])
        }
        assert set(kept.tombstones) == set(self.stones_kept)

    def check_one(self, name: str) -> None:
        context, told = self.table.shelf.get(ContextId(name)), self.model.live[name]
        assert context is not None
        assert ids_of(context.history) == pack(told.tokens)
        assert document_of(context.history) == told.document
        assert (context.turns, context.ttl_s, context.metadata, context.tenant) == (
            told.turns,
            told.ttl_s,
            told.metadata,
            told.tenant,
        )
        assert (None if context.turn is None else context.turn.nonce) == told.busy
        if told.busy is None:
            assert abs(context.idle_until - told.idle_until) < 1e-3
        assert abs(context.last_used_at - told.last_used) < 1e-3

    def look(self, tenant: str, name: str) -> None:
        view, told = self._same(
            lambda: self.table.get(Tenant(tenant), ContextId(name), self.now),
            lambda: self.model.find(tenant, name, self.now),
        )
        if view is not None and told is not None:
            assert (view.turns, view.tokens) == (told.turns, len(told.tokens))
            assert (view.expires_at is None) == (told.busy is not None)
        self._after()

    def list_all(self, tenant: str) -> None:
        """Page by page, newest first."""
        seen: list[str] = []
        page = self.table.page(Page(Tenant(tenant), 3, None), self.now)
        while True:
            seen += [view.id for view in page.views]
            if not page.has_more or not page.views:
                break
            page = self.table.page(Page(Tenant(tenant), 3, page.views[-1].id), self.now)
        over = set(self.model.expired(self.now))
        mine = {name for name, told in self.model.live.items() if told.tenant == tenant}
        if not over & mine:
            assert sorted(seen) == sorted(mine)

    def _expire(self, name: ContextId) -> bool:
        told = self.model.live[name]
        change = self.table.expire(name, self.now)
        fate = self.fate()
        if fate in (Fate.KEPT, Fate.CRASH_AFTER):
            self._keep(change.entries)
            del self.model.live[name]
            self.model.save(name)
            expired_at = self.now.wall + told.idle_until - self.now.monotonic
            self.model.stones[name] = (told.tenant, told.idle_until + TOMBSTONE_S)
            self.stones_kept[name] = (told.tenant, expired_at)
        if fate is Fate.REFUSED:
            change.undo()
        return self._crashed(fate)

    def _bury(self) -> None:
        while entries := self.table.bury(self.now).entries:
            self._keep(entries)
            for key, _ in entries:
                name = key.removeprefix("tombstone/")
                assert self.model.stones.pop(name)[1] <= self.now.monotonic
                del self.stones_kept[name]

    def _durable(self, plan: Callable[[], Change], tell: Callable[[], None], name: str) -> None:
        context = self.table.shelf.get(ContextId(name))
        if context is not None:
            self.table.turns.settled(context, self.now)
            self.model.end_if_silent(name, self.now)
        before = copy.deepcopy(self.model.live.get(name))
        was_dirty = name in self.model.dirty
        change, _ = self._same(plan, lambda: tell() or True)
        if change is not None and change.entries:
            fate = self.fate()
            if fate in (Fate.KEPT, Fate.CRASH_AFTER):
                self._keep(change.entries)
                self.model.save(name)
            if fate is Fate.KEPT and change.freed is not None:
                self.table.turns.serve_next(change.freed, self.now)
                self.model.serve(name, self.now)
            if fate is Fate.REFUSED:
                change.undo()
                self._take_back(name, before, was_dirty)
            if self._crashed(fate):
                return
        self._after()

    def _take_back(self, name: str, before: Told | None, was_dirty: bool) -> None:
        if before is None:
            self.model.live.pop(name, None)
        else:
            self.model.live[name] = before
        self.model.dirty.discard(name)
        if was_dirty:
            self.model.dirty.add(name)

    def _may_end(self, told: Told, ticket: Ticket) -> bool:
        return self.model.may_end(told, ticket.nonce, ticket.turns, ticket.epoch, self.now)

    def _same(
        self, ours: Callable[[], T | None], told: Callable[[], object]
    ) -> tuple[T | None, object]:
        """Both results, or None twice where both refuse for the same reason."""
        results: list[object] = []
        for call in (ours, told):
            try:
                results.append(call())
            except WarmpathError as error:
                results.append(type(error))
        mine, theirs = results
        if isinstance(mine, type) or isinstance(theirs, type):
            assert mine is theirs
            return None, None
        return mine, theirs  # type: ignore[return-value]

    def _after(self, in_order: bool = True) -> None:
        """Turns that waited got the same answers on both sides."""
        granted, self.model.granted = self.model.granted, []
        ours = []
        for nonce, outcome in self.table.turns.take_ready():
            if isinstance(outcome, WarmpathError):
                ours.append((nonce, type(outcome)))
            else:
                ours.append((nonce, outcome.tokens))
                self.held.append(Held(outcome.ticket.context_id, outcome.ticket))
        theirs = [
            (nonce, pack(outcome) if isinstance(outcome, tuple) else outcome)
            for nonce, outcome in granted
        ]
        if not in_order:
            ours.sort(key=lambda row: row[0])
            theirs.sort(key=lambda row: row[0])
        assert ours == theirs

    def _keep(self, entries: Sequence[Entry]) -> None:
        for key, value in entries:
            if value is None:
                self.journal.pop(key, None)
            else:
                self.journal[key] = value

    def _crashed(self, fate: Fate) -> bool:
        if fate in (Fate.CRASH_BEFORE, Fate.CRASH_AFTER):
            self.crash()
            return True
        return False

    def _fresh(self) -> str:
        self.names += 1
        return f"ctx-{self.names}"


def _reachable(tips: Sequence[Segment]) -> set[Segment]:
    found: set[Segment] = set()
    for tip in tips:
        segment: Segment | None = tip
        while segment is not None and segment not in found:
            found.add(segment)
            segment = segment.parent
    return found
