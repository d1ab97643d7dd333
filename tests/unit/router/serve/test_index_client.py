"""The client against a block index in the same process; with the actor it is in tests/serve."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextvars import ContextVar
from dataclasses import replace
from random import Random
from typing import Protocol

import numpy as np
import pytest

from router.core.errors import IndexUnavailable
from router.core.ledger import LoadLedger
from router.core.types import ReplicaId, Tenant
from router.policies.registry import PolicySpec
from router.serve.flights import RoutingRequest
from router.serve.index_client import IndexClient, Route
from router.serve.leases import ReplicaLeases
from router.serve.link_settings import LinkSettings
from router.serve.wire import Landing

DEADLINE_S = 0.02
SETTINGS = LinkSettings(
    deadline_s=DEADLINE_S, probe_interval_s=0.03, note_delay_s=0.001, repeat_after_s=0.01
)


class Index(Protocol):
    flights: int
    is_down: bool
    running: asyncio.Event
    ledger: LoadLedger
    leases: ReplicaLeases

    def restart(self, replicas: list[ReplicaId] = ...) -> None: ...
    def register(self, replica_id: ReplicaId, slot: int) -> None: ...
    def now(self) -> float: ...
    async def exchange(self, flight: bytes) -> Landing: ...


@pytest.fixture
async def client(index: Index, rng: Random) -> AsyncIterator[IndexClient]:
    client = IndexClient(index, rng, SETTINGS)
    yield client
    await client.close()


def prompt(seed: int = 0, blocks: int = 8, **fields: object) -> RoutingRequest:
    hashes = np.random.default_rng(seed).integers(0, 2**63, blocks, dtype=np.uint64)
    return RoutingRequest(hashes.tobytes(), blocks * 16, 16, **fields)  # type: ignore[arg-type]


def is_breaker_open(client: IndexClient) -> bool:
    counters = client.counters()
    return counters["breaker_opened"] > counters["breaker_closed"]


async def until(condition: Callable[[], bool], limit_s: float = 2.0) -> None:
    deadline = asyncio.get_running_loop().time() + limit_s
    while not condition():
        assert asyncio.get_running_loop().time() < deadline, "it did not happen in time"
        await asyncio.sleep(0.001)


async def miss_deadlines(client: IndexClient, count: int) -> list[Route]:
    return [await client.select(prompt(seed)) for seed in range(count)]


async def test_the_index_decides_and_books(client: IndexClient, index: Index) -> None:
    route = await client.select(prompt(tenant=Tenant("acme")))

    assert not route.is_fallback and route.replica_id in route.ranked
    assert index.ledger.get(route.booking_id) is not None
    assert client.in_flight() == {route.replica_id: 1}
    assert client.counters()["selected"] == 1


async def test_requests_of_one_moment_share_one_call(client: IndexClient, index: Index) -> None:
    routes = await asyncio.gather(*(client.select(prompt(seed)) for seed in range(40)))

    assert index.flights == 1
    assert len({route.booking_id for route in routes}) == 40


async def test_a_requests_course_reaches_the_ledger(client: IndexClient, index: Index) -> None:
    route = await client.select(prompt())
    other = next(name for name in route.ranked if name != route.replica_id)

    client.move(route.booking_id, other)
    client.first_token(route.booking_id)
    client.progress(route.booking_id, 33)
    await until(lambda: index.ledger.prefill_tokens.sum() == 0)

    booking = index.ledger.get(route.booking_id)
    assert booking is not None
    assert index.ledger.decode_blocks[booking.slot] == 8 + 3
    assert client.in_flight() == {other: 1}

    client.settle(route.booking_id)
    await until(lambda: len(index.ledger) == 0)
    assert client.in_flight() == {}


async def test_a_silent_index_costs_one_deadline(client: IndexClient, index: Index) -> None:
    await client.select(prompt())
    index.running.clear()
    started = asyncio.get_running_loop().time()

    route = await client.select(prompt(1))

    assert route.reason == "fallback:deadline" and route.ranked
    assert asyncio.get_running_loop().time() - started < DEADLINE_S * 10
    assert client.counters()["fallback_deadline"] == 1


async def test_a_late_answer_is_released(client: IndexClient, index: Index) -> None:
    first = await client.select(prompt())
    index.running.clear()
    fallback = await client.select(prompt(1))
    client.settle(first.booking_id)
    client.settle(fallback.booking_id)

    index.running.set()

    await until(lambda: client.counters()["late_answers"] == 1 or len(index.ledger) == 0)
    await until(lambda: len(index.ledger) == 0)


async def test_an_answer_before_the_clocks_are_known_is_released_too(
    client: IndexClient, index: Index
) -> None:
    """A first flight cannot say when it expires on the actor's clock."""
    index.running.clear()
    await client.select(prompt())
    index.running.set()

    await until(lambda: client.counters()["late_answers"] == 1)
    await until(lambda: len(index.ledger) == 0)


async def test_three_misses_open_the_breaker_and_a_probe_closes_it(
    client: IndexClient, index: Index
) -> None:
    await client.select(prompt())
    index.running.clear()
    await miss_deadlines(client, 3)
    assert is_breaker_open(client)
    flights = index.flights

    route = await client.select(prompt())
    assert route.reason == "fallback:breaker_open"
    assert index.flights == flights

    index.running.set()
    await until(lambda: not is_breaker_open(client))
    assert not (await client.select(prompt())).is_fallback
    assert client.counters()["breaker_opened"] == client.counters()["breaker_closed"] == 1


async def test_a_late_answer_calls_for_a_probe_at_once(index: Index, rng: Random) -> None:
    client = IndexClient(index, rng, replace(SETTINGS, probe_interval_s=60.0))
    await client.select(prompt())
    index.running.clear()
    await miss_deadlines(client, 3)
    assert (await client.select(prompt())).reason == "fallback:breaker_open"

    index.running.set()

    await until(lambda: client.counters()["breaker_closed"] == 1)
    await client.close()


async def test_a_frozen_index_never_holds_more_than_a_few_calls(
    client: IndexClient, index: Index
) -> None:
    index.running.clear()
    await miss_deadlines(client, 3)
    await asyncio.sleep(0.045)
    await asyncio.sleep(0.045)

    assert index.flights <= 8


async def test_what_was_decided_alone_is_booked_once_the_index_is_back(
    client: IndexClient, index: Index
) -> None:
    await client.select(prompt())
    index.is_down = True
    lone = await client.select(prompt(1))
    assert lone.reason == "fallback:unavailable"
    assert index.ledger.get(lone.booking_id) is None

    index.is_down = False
    await until(lambda: index.ledger.get(lone.booking_id) is not None)


async def test_a_fresh_index_is_told_of_every_live_booking(
    client: IndexClient, index: Index
) -> None:
    live = [await client.select(prompt(seed)) for seed in range(3)]
    client.first_token(live[0].booking_id)
    client.settle(live[2].booking_id)
    await until(lambda: len(index.ledger) == 2)
    loads = index.ledger.loads.copy()

    index.restart()
    newest = await client.select(prompt(9))
    await until(lambda: len(index.ledger) == 3)
    client.settle(newest.booking_id)
    await until(lambda: len(index.ledger) == 2)

    assert (index.ledger.loads == loads).all()


async def test_bookings_on_replicas_that_are_not_back_yet_are_told_again(
    client: IndexClient, index: Index
) -> None:
    route = await client.select(prompt())
    assert route.replica_id is not None
    index.restart(replicas=[])
    assert (await client.select(prompt(1))).reason == "fallback:no_candidate"
    assert len(index.ledger) == 0

    for slot, replica_id in enumerate(route.ranked):
        index.register(replica_id, slot)

    await until(lambda: index.ledger.get(route.booking_id) is not None)


async def test_local_decisions_follow_the_prefix(client: IndexClient, index: Index) -> None:
    await client.select(prompt())
    index.is_down = True

    routes = [await client.select(prompt(5)) for _ in range(2)]
    client.settle(routes[0].booking_id)
    client.settle(routes[1].booking_id)
    third = await client.select(prompt(5))

    assert routes[0].replica_id == third.replica_id
    assert routes[0].booking_id != third.booking_id


async def test_local_decisions_respect_exclusions_and_candidates(
    client: IndexClient, index: Index
) -> None:
    members = (ReplicaId("a"), ReplicaId("b"))
    client.update_members([ReplicaId("z"), *members])
    index.is_down = True

    route = await client.select(prompt(candidates=members, excluded=members[:1]))

    assert route.ranked == members[1:]


async def test_nobody_known_leaves_the_choice_to_serve(client: IndexClient, index: Index) -> None:
    index.is_down = True

    route = await client.select(prompt())

    assert route.replica_id is None and route.ranked == ()
    assert client.counters()["unplaced"] == 1


async def test_a_policy_that_does_not_exist_is_counted_and_served(client: IndexClient) -> None:
    await client.select(prompt())
    route = await client.select(prompt(policy=PolicySpec("no_such_policy")))

    assert route.reason == "fallback:invalid_policy" and route.ranked


async def test_a_caller_that_goes_away_leaves_nothing_booked(index: Index, rng: Random) -> None:
    client = IndexClient(index, rng, replace(SETTINGS, deadline_s=5.0))
    await client.select(prompt())
    index.running.clear()
    gone = asyncio.create_task(client.select(prompt(1)))
    await until(lambda: index.flights == 2)
    gone.cancel()
    with pytest.raises(asyncio.CancelledError):
        await gone
    index.running.set()

    await until(lambda: client.counters()["late_answers"] == 1)
    await until(lambda: len(index.ledger) == 1)
    assert sum(client.in_flight().values()) == 1
    await client.close()


async def test_bookings_of_a_long_request_are_renewed(index: Index, rng: Random) -> None:
    client = IndexClient(index, rng, LinkSettings(lease_s=0.3, deadline_s=5.0))
    started_at = asyncio.get_running_loop().time() + 1e6
    route = await client.select(prompt())
    await until(lambda: client.counters()["flights"] >= 3)

    swept = index.ledger.sweep(started_at + 0.45)

    assert swept == [] and route.booking_id in index.ledger
    await client.close()


async def close_while(client: IndexClient, waiting: Awaitable[Route]) -> Route:
    task = asyncio.ensure_future(waiting)
    await asyncio.sleep(0)
    await client.close()
    return await task


async def test_closing_answers_all_tells_the_last_and_leaves_no_task(
    index: Index, rng: Random
) -> None:
    before = asyncio.all_tasks()
    client = IndexClient(index, rng, SETTINGS)
    route = await client.select(prompt())
    client.settle(route.booking_id)

    waiting = await close_while(client, client.select(prompt(1)))

    assert waiting.reason == "fallback:closed"
    assert len(index.ledger) == 0
    assert asyncio.all_tasks() == before


async def test_closing_an_open_breaker_leaves_no_task(index: Index, rng: Random) -> None:
    before = asyncio.all_tasks()
    client = IndexClient(index, rng, SETTINGS)
    index.running.clear()
    await miss_deadlines(client, 3)

    await client.close()

    assert asyncio.all_tasks() == before


async def test_a_call_is_nobodys_own(index: Index, rng: Random) -> None:
    """Ray cancels a call together with the request in whose context it was made."""
    request: ContextVar[str] = ContextVar("request", default="nobody's")
    seen: list[str] = []

    class Watched:
        async def exchange(self, flight: bytes) -> Landing:
            seen.append(request.get())
            return await index.exchange(flight)

    client = IndexClient(Watched(), rng, SETTINGS)
    request.set("one client's")
    await client.select(prompt())
    await client.close()
    assert set(seen) == {"nobody's"}


async def test_a_call_that_was_carried_out_but_not_answered_leaves_nothing_booked(
    index: Index, rng: Random
) -> None:
    class Deaf:
        """Loses the first answer."""

        is_deaf = True

        async def exchange(self, flight: bytes) -> Landing:
            landing = await index.exchange(flight)
            if self.is_deaf:
                self.is_deaf = False
                raise IndexUnavailable("the answer was lost")
            return landing

    client = IndexClient(Deaf(), rng, SETTINGS)
    assert (await client.select(prompt())).is_fallback
    await until(lambda: len(index.ledger) == 0)
    await client.close()


async def test_replicas_that_serve_has_not_are_chosen_by_nobody(
    client: IndexClient, index: Index
) -> None:
    ranked = (await client.select(prompt())).ranked
    client.update_members(ranked[1:])
    assert set((await client.select(prompt())).ranked) == set(ranked[1:])
    index.is_down = True
    assert set((await client.select(prompt())).ranked) == set(ranked[1:])


async def test_the_index_hears_at_once_of_a_replica_that_is_gone(
    client: IndexClient, index: Index
) -> None:
    """Without a request; and for others, who have not heard it from Serve."""
    ranked = (await client.select(prompt())).ranked
    client.update_members(ranked)
    other = IndexClient(index, Random(8), SETTINGS)

    client.update_members(ranked[1:])

    await until(lambda: ranked[0] not in index.leases.members(index.now()))
    assert set((await other.select(prompt())).ranked) == set(ranked[1:])
    await other.close()


async def test_a_deadline_may_change_while_requests_come(client: IndexClient, index: Index) -> None:
    await client.select(prompt())
    client.adjust(replace(SETTINGS, deadline_s=5.0))
    index.running.clear()
    waiting = asyncio.create_task(client.select(prompt()))
    await asyncio.sleep(2 * DEADLINE_S)
    assert not waiting.done()
    index.running.set()
    assert not (await waiting).is_fallback
