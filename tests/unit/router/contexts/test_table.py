"""The contract of contexts, line by line, on a table alone."""

import pytest

from router.contexts.context import Moment
from router.contexts.history import ids_of
from router.contexts.messages import ContextView, Kind, NewContext, OpenTurn, TurnResult, Usage
from router.contexts.settings import ContextSettings
from router.contexts.table import ContextTable
from router.contexts.wire import Begin, Create, Fork, Page, Patch
from router.core.errors import (
    ContextBusy,
    ContextExpired,
    ContextKindMismatch,
    ContextNotFound,
    ContextQuotaExceeded,
    ContextsUnavailable,
    ModelMismatch,
    TurnConflict,
    WarmpathError,
)
from router.core.types import ContextId, ReplicaId, Tenant

SETTINGS = ContextSettings(
    "app", max_contexts_per_tenant=3, max_tokens_per_tenant=20, max_contexts=5, max_waiting=2
)
ALICE, BOB = Tenant("alice"), Tenant("bob")


class Clocked:
    """A table whose writes all succeed, and a clock that a test moves."""

    def __init__(self, settings: ContextSettings = SETTINGS) -> None:
        self.table = ContextTable(settings, 1, 0.0)
        self.now = Moment(0.0, 1_000_000.0)
        self.made = 0
        self.nonce = 0

    def pass_time(self, seconds: float) -> None:
        self.now = Moment(self.now.monotonic + seconds, self.now.wall + seconds)

    def create(self, tokens: int = 1, ttl_s: int = 100, tenant: Tenant = ALICE) -> ContextId:
        self.made += 1
        new = NewContext("m", Kind.PROMPT, b"aaaa" * tokens, b"", ttl_s, {"k": "v"})
        name = ContextId(f"ctx-{self.made}")
        self.table.create(Create(tenant, name, new), self.now)
        return name

    def fork(self, name: ContextId, ttl_s: int | None = None) -> ContextView:
        self.made += 1
        fork = Fork(ALICE, name, ContextId(f"ctx-{self.made}"), ttl_s, None)
        view = self.table.fork(fork, self.now).view
        assert view is not None
        return view

    def begin(
        self, name: ContextId, expected: int | None = None, wait_s: float = 0.0, **other: str
    ) -> OpenTurn | None:
        self.nonce += 1
        model, kind = other.get("model", "m"), Kind(other.get("kind", "prompt"))
        begin = Begin(ALICE, name, self.nonce, model, kind, expected, wait_s)
        return self.table.begin(begin, self.now)

    def opened(self, name: ContextId) -> OpenTurn:
        turn = self.begin(name)
        assert turn is not None
        return turn

    def commit(self, turn: OpenTurn, result: TurnResult | None = None) -> ContextView:
        change = self.table.commit(turn.ticket, result or TurnResult(b"bbbb"), self.now)
        assert change.view is not None
        if change.freed is not None:
            self.table.turns.serve_next(change.freed, self.now)
        return change.view

    def view(self, name: ContextId) -> ContextView:
        return self.table.get(ALICE, name, self.now)

    def waited(self) -> list[type[WarmpathError] | type[OpenTurn]]:
        return [type(waited.outcome) for waited in self.table.turns.take_ready()]


@pytest.fixture
def desk() -> Clocked:
    return Clocked()


def test_the_idle_clock_starts_again_at_a_turns_start_and_end(desk: Clocked) -> None:
    name = desk.create(ttl_s=100)
    desk.pass_time(99)
    turn = desk.opened(name)
    assert desk.view(name).expires_at is None
    for _ in range(50):
        desk.pass_time(9)
        assert desk.table.turns.renew(turn.ticket, desk.now)

    assert desk.commit(turn).expires_at == int(desk.now.wall) + 100
    desk.pass_time(99.9)
    assert desk.view(name).turns == 1
    desk.pass_time(0.1)
    with pytest.raises(ContextExpired):
        desk.view(name)


def test_looking_at_a_context_does_not_keep_it(desk: Clocked) -> None:
    name = desk.create(ttl_s=100)
    desk.pass_time(60)
    desk.view(name)
    desk.fork(name)
    desk.pass_time(40)
    with pytest.raises(ContextExpired):
        desk.view(name)


def test_a_new_ttl_starts_the_clock_again_even_during_a_turn(desk: Clocked) -> None:
    name = desk.create(ttl_s=100)
    turn = desk.opened(name)
    view = desk.table.patch(Patch(ALICE, name, 5, {"new": "one"}), desk.now).view
    assert view is not None
    assert (view.ttl_s, view.metadata, view.expires_at) == (5, {"new": "one"}, None)

    assert desk.commit(turn).expires_at == int(desk.now.wall) + 5


def test_an_owner_hears_of_expiry_for_an_hour_and_others_never(desk: Clocked) -> None:
    name = desk.create(ttl_s=1)
    desk.pass_time(1)
    for seconds in (0.0, 3599.0):
        desk.pass_time(seconds)
        desk.table.expire(name, desk.now)
        with pytest.raises(ContextExpired):
            desk.view(name)
        with pytest.raises(ContextNotFound):
            desk.table.get(BOB, name, desk.now)
    desk.pass_time(1)
    with pytest.raises(ContextNotFound):
        desk.view(name)
    assert desk.table.bury(desk.now).entries == [(f"tombstone/{name}", None)]
    assert len(desk.table.tombstones) == 0


def test_a_disconnect_leaves_the_last_committed_turn_and_a_free_context(desk: Clocked) -> None:
    name = desk.create()
    desk.commit(desk.opened(name))
    gone = desk.opened(name)
    desk.table.turns.abandon(ALICE, name, gone.ticket.nonce, desk.now)

    after = desk.opened(name)

    assert (after.tokens, after.turns) == (b"aaaabbbb", 1)
    with pytest.raises(TurnConflict):
        desk.commit(gone)


def test_a_turn_ends_ten_seconds_after_the_last_renewal(desk: Clocked) -> None:
    name = desk.create()
    turn = desk.opened(name)
    desk.pass_time(9.9)
    with pytest.raises(ContextBusy):
        desk.begin(name)
    desk.pass_time(0.1)

    assert desk.opened(name).turns == 0
    assert not desk.table.turns.renew(turn.ticket, desk.now)
    with pytest.raises(TurnConflict):
        desk.commit(turn)


def test_a_conditional_turn_makes_a_retry_safe(desk: Clocked) -> None:
    name = desk.create()
    turn = desk.begin(name, expected=0)
    assert turn is not None
    with pytest.raises(ContextBusy):
        desk.begin(name, expected=0)
    desk.commit(turn)

    with pytest.raises(TurnConflict):
        desk.begin(name, expected=0)
    with pytest.raises(TurnConflict):
        desk.begin(name, expected=2)
    assert desk.begin(name, expected=1) is not None


def test_turns_wait_in_the_order_of_their_coming(desk: Clocked) -> None:
    name = desk.create()
    turn = desk.opened(name)
    assert desk.begin(name, wait_s=5) is None
    assert desk.begin(name, expected=1, wait_s=50) is None
    with pytest.raises(ContextBusy, match="wait"):
        desk.begin(name, wait_s=50)
    desk.commit(turn)
    (first,) = desk.table.turns.take_ready()
    assert isinstance(first.outcome, OpenTurn) and first.outcome.turns == 1
    desk.commit(first.outcome)

    assert desk.waited() == [TurnConflict], "it wanted to be the second turn"
    assert desk.table.turns.waiting == 0 and desk.opened(name).turns == 2


def test_who_waits_too_long_is_told(desk: Clocked) -> None:
    name = desk.create()
    turn = desk.opened(name)
    desk.begin(name, wait_s=5)
    desk.pass_time(5)
    desk.table.turns.refuse_overdue(desk.now)

    assert desk.waited() == [ContextBusy]
    assert desk.commit(turn).turns == 1


def test_a_context_belongs_to_its_model_and_kind(desk: Clocked) -> None:
    name = desk.create()
    with pytest.raises(ModelMismatch):
        desk.begin(name, model="other")
    with pytest.raises(ContextKindMismatch):
        desk.begin(name, kind="chat")
    assert desk.view(name).expires_at is not None


def test_a_fork_has_the_last_committed_turn_and_costs_nothing(desk: Clocked) -> None:
    name = desk.create(tokens=3)
    turn = desk.opened(name)
    stored = desk.table.shelf.pool.stored_bytes
    fork = desk.fork(name, ttl_s=7)
    desk.commit(turn)

    assert (fork.turns, fork.tokens, fork.ttl_s, fork.metadata) == (0, 3, 7, {"k": "v"})
    assert fork.usage == Usage(3, 0, 3) and fork.expires_at is not None
    assert desk.table.shelf.pool.stored_bytes == stored + 4
    assert desk.opened(fork.id).tokens == b"aaaa" * 3


def test_deleting_waits_for_no_turn_and_happens_once(desk: Clocked) -> None:
    name = desk.create()
    turn = desk.opened(name)
    with pytest.raises(ContextBusy):
        desk.table.delete(ALICE, name, desk.now)
    desk.commit(turn)
    desk.table.delete(ALICE, name, desk.now)

    with pytest.raises(ContextNotFound):
        desk.table.delete(ALICE, name, desk.now)
    assert desk.table.shelf.pool.segments == 0


def test_a_turn_may_rewrite_history(desk: Clocked) -> None:
    name = desk.create(tokens=3)
    result = TurnResult(b"cccc", keep_tokens=1, usage=Usage(3, 1, 2), replica_id=ReplicaId("r"))
    view = desk.commit(desk.opened(name), result)

    context = desk.table.shelf.get(name)
    assert context is not None and ids_of(context.history) == b"aaaacccc"
    assert (view.tokens, view.usage) == (2, Usage(3, 1, 2))
    assert desk.opened(name).last_replica == "r"


def test_no_tenant_holds_more_than_its_quota(desk: Clocked) -> None:
    """Neither contexts nor tokens grow without end; others go on."""
    names = [desk.create() for _ in range(3)]
    with pytest.raises(ContextQuotaExceeded):
        desk.create()
    with pytest.raises(ContextQuotaExceeded):
        desk.fork(names[0])
    desk.create(tenant=BOB)
    desk.table.delete(ALICE, names[2], desk.now)
    with pytest.raises(ContextQuotaExceeded):
        desk.create(tokens=19)
    desk.commit(desk.opened(names[0]), TurnResult(b"cccc" * 18))

    with pytest.raises(ContextQuotaExceeded):
        desk.begin(names[0])
    desk.table.delete(ALICE, names[1], desk.now)
    assert desk.begin(names[0]) is not None


def test_a_full_manager_is_not_the_tenants_fault() -> None:
    desk = Clocked(ContextSettings("app", max_contexts=2, max_bytes=40))
    name = desk.create()
    desk.create(tenant=BOB)
    with pytest.raises(ContextsUnavailable):
        desk.create(tenant=BOB)
    desk.commit(desk.opened(name), TurnResult(b"cccc" * 8))
    with pytest.raises(ContextsUnavailable):
        desk.begin(name)


def test_tombstones_are_bounded() -> None:
    desk = Clocked(ContextSettings("app", max_contexts=2))
    for _ in range(4):
        name = desk.create(ttl_s=1)
        desk.pass_time(1)
        desk.table.expire(name, desk.now)
        desk.table.bury(desk.now)

    assert len(desk.table.tombstones) == 2
    with pytest.raises(ContextExpired):
        desk.view(name)
    with pytest.raises(ContextNotFound):
        desk.view(ContextId("ctx-1"))


def test_pages_hold_the_tenants_own_newest_first(desk: Clocked) -> None:
    names = [desk.create() for _ in range(3)]
    desk.create(tenant=BOB)
    first = desk.table.page(Page(ALICE, 2, None), desk.now)
    second = desk.table.page(Page(ALICE, 2, first.views[-1].id), desk.now)

    assert [view.id for view in first.views] == names[:0:-1] and first.has_more
    assert [view.id for view in second.views] == names[:1] and not second.has_more
    with pytest.raises(ContextNotFound):
        desk.table.page(Page(ALICE, 2, ContextId("ctx-4")), desk.now)
