"""One life of the context manager without Ray: group commit, refusals, waits, timers."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace

import pytest

from router.contexts.messages import Kind, NewContext, OpenTurn, TurnResult
from router.contexts.settings import ContextSettings
from router.contexts.wire import (
    Abandon,
    Begin,
    Begun,
    Claimed,
    Claims,
    Commit,
    Create,
    Done,
    Failed,
    Flight,
    Fork,
    Get,
    Operation,
    Renew,
    Renewed,
    Reply,
    Viewed,
    encode,
)
from router.core.errors import JournalFull, JournalLost
from router.core.types import ContextId, Tenant
from router.serve.context_service import ContextService, open_service
from tests.unit.router.contexts.memory_journal import Medium, MemoryJournal

SETTINGS = ContextSettings("app", lease_s=0.2, sweep_interval_s=0.01)
TENANT, NAME = Tenant("t"), ContextId("ctx-1")


class Office:
    """A service and the medium behind it."""

    def __init__(self) -> None:
        self.medium = Medium()
        self.ended = 0
        self.service: ContextService

    async def open(self, settings: ContextSettings = SETTINGS) -> None:
        self.service = await open_service(MemoryJournal(self.medium), settings, self._end)

    async def ask(self, *operations: Operation) -> list[Reply]:
        return await self.service.exchange(encode(Flight(list(operations))))

    async def create(self, name: str = NAME, ttl_s: int = 3600) -> Reply:
        new = NewContext("m", Kind.PROMPT, b"aaaa", b"", ttl_s)
        return (await self.ask(Create(TENANT, ContextId(name), new)))[0]

    async def begin(self, nonce: int = 1, name: str = NAME) -> OpenTurn:
        (reply,) = await self.ask(begin(nonce, name))
        assert isinstance(reply, Begun)
        return reply.turn

    def commit(self, turn: OpenTurn, tail: bytes = b"bbbb") -> "asyncio.Task[list[Reply]]":
        return asyncio.create_task(self.ask(Commit(turn.ticket, TurnResult(tail))))

    def _end(self) -> None:
        self.ended += 1


def begin(nonce: int, name: str = NAME, wait_s: float = 0.0) -> Begin:
    return Begin(TENANT, ContextId(name), nonce, "m", Kind.PROMPT, None, wait_s)


def error(replies: list[Reply]) -> str | None:
    return replies[0].error if isinstance(replies[0], Failed) else None


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - it comes true on the writer's thread
            await asyncio.sleep(0.005)


@pytest.fixture
async def office() -> AsyncIterator[Office]:
    office = Office()
    await office.open()
    yield office
    office.medium.may_write.set()
    await office.service.close("the test is over")


async def test_commits_that_come_during_a_write_are_one_write(office: Office) -> None:
    await asyncio.gather(*(office.create(f"ctx-{n}") for n in range(50)))
    turns = [await office.begin(n, f"ctx-{n}") for n in range(50)]
    await until(lambda: not office.service.table.shelf.has_touched)
    office.medium.may_write.clear()
    first = office.commit(turns[0])
    await asyncio.sleep(0.02)
    before = office.medium.writes
    others = [office.commit(turn) for turn in turns[1:]]
    await asyncio.sleep(0.02)
    assert not any(task.done() for task in (first, *others))

    office.medium.may_write.set()
    await asyncio.gather(first, *others)

    assert office.medium.writes <= before + 3


async def test_nobody_sees_a_turn_before_it_is_durable(office: Office) -> None:
    await office.create()
    turn = await office.begin()
    office.medium.may_write.clear()
    commit = office.commit(turn)
    look = asyncio.create_task(office.ask(Get(TENANT, NAME), begin(2)))
    await asyncio.sleep(0.03)
    assert not look.done() and not commit.done()

    office.medium.may_write.set()
    seen, begun = await look

    assert isinstance(seen, Viewed) and seen.view.turns == 1
    assert isinstance(begun, Begun) and begun.turn.tokens == b"aaaabbbb"


async def test_no_room_is_an_error_of_the_turn_and_loses_no_context(office: Office) -> None:
    await office.create()
    turn = await office.begin()
    await until(lambda: not office.service.table.shelf.has_touched)
    office.medium.faults = [JournalFull("full")]

    assert error(await office.commit(turn)) == "ContextsUnavailable"
    (again,) = await office.commit(turn)

    assert isinstance(again, Viewed) and again.view.turns == 1
    assert office.ended == 0


async def test_what_was_planned_on_top_of_a_refused_write_falls_with_it(office: Office) -> None:
    """A fork and its parent's commit share a history; neither may be half there."""
    await office.create()
    turn = await office.begin()
    await until(lambda: not office.service.table.shelf.has_touched)
    rows = dict(office.medium.rows)
    office.medium.may_write.clear()
    office.medium.faults = [JournalFull("full")]
    commit = office.commit(turn)
    await asyncio.sleep(0.02)
    create = asyncio.create_task(office.create("ctx-2"))
    await asyncio.sleep(0.02)
    office.medium.may_write.set()

    assert error(await commit) == "ContextsUnavailable"
    reply = await create
    assert isinstance(reply, Failed)
    assert office.medium.rows == rows and len(office.service.table.shelf) == 1
    fork = Fork(TENANT, NAME, ContextId("ctx-3"), None, None)
    assert isinstance((await office.ask(fork))[0], Viewed)


async def test_a_write_of_unknown_fate_is_repeated_until_it_is_known(office: Office) -> None:
    await office.create()
    turn = await office.begin()
    await until(lambda: not office.service.table.shelf.has_touched)
    office.medium.faults = [JournalLost("away")]

    (reply,) = await office.commit(turn)

    assert isinstance(reply, Viewed) and reply.view.turns == 1
    assert office.service.counts()["writes_repeated"] == 1


async def test_a_later_life_ends_this_one(office: Office) -> None:
    await office.create()
    turn = await office.begin()
    MemoryJournal(office.medium).claim()

    assert error(await office.commit(turn)) == "ContextsUnavailable"
    assert office.ended == 1
    assert error(await office.ask(Get(TENANT, NAME))) == "ContextsUnavailable"
    assert error([await office.create("ctx-2")]) == "ContextsUnavailable"


async def test_the_same_operations_again_change_nothing(office: Office) -> None:
    """As a client repeats them whose answers were lost."""
    created = await office.create()
    assert await office.create() == created
    turn = await office.begin()
    assert await office.begin() == turn
    committed = await office.commit(turn)
    assert await office.commit(turn) == committed
    fork = Fork(TENANT, NAME, ContextId("ctx-2"), None, None)
    assert await office.ask(fork) == await office.ask(fork)
    assert len(office.service.table.shelf) == 2


async def test_who_waits_begins_when_the_turn_is_durable(office: Office) -> None:
    await office.create()
    turn = await office.begin(1)
    waiting = [asyncio.create_task(office.ask(begin(n, wait_s=5.0))) for n in (2, 3)]
    await until(lambda: office.service.table.turns.waiting == 2)
    await office.commit(turn)

    (second,) = await waiting[0]
    assert isinstance(second, Begun) and second.turn.turns == 1
    assert not waiting[1].done()
    assert isinstance((await office.ask(Abandon(TENANT, NAME, 2)))[0], Done)
    (third,) = await waiting[1]
    assert isinstance(third, Begun) and third.turn.turns == 1


async def test_a_wait_ends_in_time_or_when_it_is_given_up(office: Office) -> None:
    await office.create()
    turn = await office.begin(1)
    late = asyncio.create_task(office.ask(begin(2, wait_s=0.03)))
    given_up = asyncio.create_task(office.ask(begin(3, wait_s=5.0)))
    await until(lambda: office.service.table.turns.waiting == 2)
    assert error(await late) == "ContextBusy"
    await office.ask(Abandon(TENANT, NAME, 3))

    assert error(await given_up) == "ContextBusy"
    assert office.service.gauges()["waiting"] == 0
    await office.ask(Renew([turn.ticket]))


async def test_a_silent_turn_ends_by_the_timer(office: Office) -> None:
    await office.create()
    turn = await office.begin(1)
    await until(lambda: office.service.gauges()["busy"] == 0)

    assert await office.ask(Renew([turn.ticket])) == [Renewed([1])]
    assert error(await office.commit(turn)) == "TurnConflict"
    assert office.service.counts()["lapsed"] == 1


async def test_what_expires_leaves_the_journal_by_the_timer() -> None:
    office = Office()
    await office.open(replace(SETTINGS, tombstone_s=0.2))
    await office.create(ttl_s=1)
    await until(lambda: office.service.gauges()["tombstones"] == 1)
    assert error(await office.ask(Get(TENANT, NAME))) == "ContextExpired"
    await until(lambda: office.medium.rows == {})

    assert error(await office.ask(Get(TENANT, NAME))) == "ContextNotFound"
    await office.service.close("the test is over")


async def test_turns_under_way_go_on_in_the_next_life(office: Office) -> None:
    await office.create()
    turn = await office.begin(1)
    await office.service.close("moved")
    await office.open()

    assert error(await office.ask(begin(2))) == "ContextBusy"
    assert await office.ask(Renew([turn.ticket])) == [Renewed([])]
    (reply,) = await office.commit(turn)
    assert isinstance(reply, Viewed) and reply.view.turns == 1


async def test_a_turn_of_which_the_crash_left_no_row_goes_on_while_nobody_else_began(
    office: Office,
) -> None:
    await office.create()
    rows = dict(office.medium.rows)
    turn = await office.begin(1)
    await office.service.close("crashed")
    office.medium.rows = rows
    await office.open()

    assert isinstance((await office.commit(turn))[0], Viewed)
    other = await office.begin(2)
    assert error(await office.commit(turn)) is None
    assert isinstance((await office.commit(other))[0], Viewed)
    assert error(await office.commit(turn)) == "TurnConflict"


async def test_a_store_hears_what_contexts_claim(office: Office) -> None:
    hashes = [number.to_bytes(8, "little") for number in (1, 2, 3)]
    new = NewContext("m", Kind.PROMPT, b"aaaa", b"", 3600, claims=hashes[0] + hashes[2])
    await office.ask(Create(TENANT, NAME, new))
    (reply,) = await office.ask(Claims("m", b"".join(hashes)))
    assert reply == Claimed(b"\x01\x00\x01", 0.0)
    await office.begin()
    (reply,) = await office.ask(Claims("m", b""))
    assert isinstance(reply, Claimed)
    assert reply.oldest_turn_s > 0
