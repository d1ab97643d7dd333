"""A process's side of contexts: repeats what was lost, renews what is open, gives up in time."""

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from router.contexts.messages import ContextView, Kind, NewContext, TurnResult
from router.contexts.settings import ContextSettings
from router.contexts.wire import Landing
from router.core.errors import (
    ContextBusy,
    ContextKindMismatch,
    ContextNotFound,
    ContextQuotaExceeded,
    ContextsUnavailable,
    ModelMismatch,
    TurnConflict,
)
from router.core.types import ContextId, Tenant
from router.serve.context_client import ContextClient, ContextLinkSettings, fresh_id
from router.serve.context_service import ContextService, open_service
from tests.unit.router.contexts.memory_journal import Medium, MemoryJournal

SETTINGS = ContextSettings("app", lease_s=0.3, sweep_interval_s=0.02, max_contexts_per_tenant=3)
TENANT = Tenant("t")


class Line:
    """A connection that loses flights, or only their answers, as a test says."""

    def __init__(self, service: ContextService) -> None:
        self.service = service
        self.lost_flights = 0
        self.lost_answers = 0
        self.is_cut = False
        self.flights = 0
        self.opened = 0

    async def open(self) -> None:
        self.opened += 1
        if self.is_cut:
            raise ContextsUnavailable("nobody is there")

    async def exchange(self, flight: bytes) -> Landing:
        self.flights += 1
        if self.is_cut:
            await asyncio.Event().wait()
        if self.lost_flights:
            self.lost_flights -= 1
            raise ContextsUnavailable("lost on its way")
        landing = Landing(await self.service.exchange(flight))
        if self.lost_answers:
            self.lost_answers -= 1
            raise ContextsUnavailable("lost on its way back")
        return landing


@pytest.fixture
async def line() -> AsyncIterator[Line]:
    service = await open_service(MemoryJournal(Medium()), SETTINGS, lambda: None)
    yield Line(service)
    await service.close("the test is over")


@pytest.fixture
async def client(line: Line) -> AsyncIterator[ContextClient]:
    client = ContextClient(line, ContextLinkSettings(0.5, 0.5, repeat_after_s=0.01))
    yield client
    await client.close()


async def create(client: ContextClient) -> ContextView:
    return await client.create(TENANT, NewContext("m", Kind.PROMPT, b"aaaa", b"", 3600))


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - nothing tells of it
            await asyncio.sleep(0.005)


@pytest.mark.parametrize("lost", ["lost_flights", "lost_answers"])
async def test_every_call_may_be_lost_and_counts_once(
    line: Line, client: ContextClient, lost: str
) -> None:
    def lose() -> None:
        if lost == "lost_flights":
            line.lost_flights = 2
        else:
            line.lost_answers = 2

    lose()
    created = await create(client)
    lose()
    turn = await client.begin_turn(TENANT, created.id, "m", Kind.PROMPT)
    lose()
    committed = await client.commit(turn.ticket, TurnResult(b"bbbb"))
    lose()
    fork = await client.fork(TENANT, created.id, None, None)
    lose()
    assert (await client.patch(TENANT, fork.id, 60, {"a": "b"})).metadata == {"a": "b"}
    lose()
    await client.delete(TENANT, created.id)

    assert (committed.turns, committed.tokens, fork.turns) == (1, 2, 1)
    assert [view.id for view in (await client.page(TENANT, 10, None)).views] == [fork.id]


async def test_a_silent_manager_is_given_up_in_time(line: Line, client: ContextClient) -> None:
    view = await create(client)
    line.is_cut = True
    began_at = asyncio.get_running_loop().time()
    with pytest.raises(ContextsUnavailable):
        await client.get(TENANT, view.id)

    assert asyncio.get_running_loop().time() - began_at < 5


async def test_open_turns_are_renewed_until_they_end(line: Line, client: ContextClient) -> None:
    view = await create(client)
    turn = await client.begin_turn(TENANT, view.id, "m", Kind.PROMPT)
    await asyncio.wait([asyncio.create_task(_busy_for(line, 2.5 * SETTINGS.lease_s))])
    assert client.open_turns == 1
    client.abandon(turn.ticket)

    assert client.open_turns == 0
    await until(lambda: line.service.gauges()["busy"] == 0)
    assert line.service.counts()["lapsed"] == 0


async def _busy_for(line: Line, seconds: float) -> None:
    end = asyncio.get_running_loop().time() + seconds
    while asyncio.get_running_loop().time() < end:
        assert line.service.gauges()["busy"] == 1
        await asyncio.sleep(0.01)


async def test_a_turn_whose_lease_lapsed_is_not_committed(
    line: Line, client: ContextClient
) -> None:
    view = await create(client)
    turn = await client.begin_turn(TENANT, view.id, "m", Kind.PROMPT)
    line.is_cut = True
    await until(lambda: line.service.counts()["lapsed"] == 1)
    line.is_cut = False

    with pytest.raises(TurnConflict):
        await client.commit(turn.ticket, TurnResult(b"bbbb"))


async def test_a_cancelled_beginning_leaves_no_turn(line: Line, client: ContextClient) -> None:
    view = await create(client)
    first = await client.begin_turn(TENANT, view.id, "m", Kind.PROMPT)
    waiting = asyncio.create_task(client.begin_turn(TENANT, view.id, "m", Kind.PROMPT, wait_s=5.0))
    await until(lambda: line.service.gauges()["waiting"] == 1)
    waiting.cancel()
    await until(lambda: line.service.gauges()["waiting"] == 0)
    client.abandon(first.ticket)

    await until(lambda: line.service.gauges()["busy"] == 0)


async def test_operations_at_one_time_share_calls(line: Line, client: ContextClient) -> None:
    view = await create(client)
    before = line.flights
    await asyncio.gather(*(client.get(TENANT, view.id) for _ in range(100)))

    assert line.flights - before <= 6


async def test_refusals_arrive_as_what_they_are(client: ContextClient) -> None:
    view = await create(client)
    await client.begin_turn(TENANT, view.id, "m", Kind.PROMPT)
    second = await create(client)
    await create(client)
    with pytest.raises(ContextBusy) as busy:
        await client.begin_turn(TENANT, view.id, "m", Kind.PROMPT)
    assert busy.value.retry_after_s == 1
    with pytest.raises(ContextBusy):
        await client.delete(TENANT, view.id)
    with pytest.raises(ContextQuotaExceeded):
        await create(client)
    with pytest.raises(ModelMismatch):
        await client.begin_turn(TENANT, second.id, "other", Kind.PROMPT)
    with pytest.raises(ContextKindMismatch):
        await client.begin_turn(TENANT, second.id, "m", Kind.CHAT)
    with pytest.raises(TurnConflict):
        await client.begin_turn(TENANT, second.id, "m", Kind.PROMPT, expected_turns=1)
    with pytest.raises(ContextNotFound) as foreign:
        await client.get(Tenant("stranger"), view.id)
    with pytest.raises(ContextNotFound) as unknown:
        await client.get(TENANT, ContextId("ctx-unknown"))
    assert str(foreign.value) == str(unknown.value)
    assert (foreign.value.code, unknown.value.code) == ("context_not_found",) * 2


async def test_a_manager_is_made_before_the_first_call(line: Line, client: ContextClient) -> None:
    client.open()
    await asyncio.sleep(0)
    assert (line.opened, line.flights) == (1, 0)


async def test_a_manager_that_cannot_be_made_yet_is_made_by_the_first_call(
    line: Line, client: ContextClient, caplog: pytest.LogCaptureFixture
) -> None:
    line.is_cut = True
    client.open()
    await asyncio.sleep(0)
    assert "no context manager yet" in caplog.text
    line.is_cut = False
    assert (await create(client)).turns == 0


async def test_a_closed_client_lets_nobody_wait(line: Line, client: ContextClient) -> None:
    view = await create(client)
    line.is_cut = True
    calls = [
        asyncio.create_task(client.get(TENANT, view.id)),
        asyncio.create_task(client.begin_turn(TENANT, view.id, "m", Kind.PROMPT, wait_s=60.0)),
    ]
    await asyncio.sleep(0.02)
    await client.close()

    results = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(result) for result in results] == [ContextsUnavailable] * 2


def test_ids_are_not_to_be_guessed() -> None:
    ids = {fresh_id() for _ in range(1000)}
    assert len(ids) == 1000
    assert all(name.startswith("ctx-") and len(name) == 4 + 32 for name in ids)
