"""From a decision to an answer: retries, ends, settlements, and what is told of each."""

import asyncio
from collections.abc import AsyncGenerator, Sequence

import pytest

from replicas.engines.protocol import EngineRequest, Route
from replicas.settlement import Settlement
from router.core.errors import EngineDead, EngineError, NoReplica
from router.core.types import BookingId, ReplicaId, Tenant
from router.policies.registry import PolicySpec
from router.rules import RuleOutcome
from router.serve.index_client import Route as Decided
from serve_app.admission import Admitted
from serve_app.allow_list import ApiRoute
from serve_app.dispatch import PROGRESS_ITEMS, Dispatcher, Item
from serve_app.observe.record import CLIENT_GONE, RequestRecord
from serve_app.prompt_blocks import hash_prompts
from serve_app.routing import ClientHints, LiveRequest

R1, R2 = ReplicaId("r1"), ReplicaId("r2")
SETTLEMENT = Settlement(4, (8,), (2,), (None,))
NO_HINTS = ClientHints()


class Bookings:
    """Stands in for the index client: writes down what it is told."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def first_token(self, booking_id: BookingId) -> None:
        self.told.append("first_token")

    def progress(self, booking_id: BookingId, output_tokens: int) -> None:
        self.told.append(f"progress {output_tokens}")


class Router:
    """Chooses `R1` unless that has just failed."""

    def __init__(self) -> None:
        self.bookings = Bookings()
        self.begun: list[Sequence[ReplicaId]] = []
        self.open: list[LiveRequest] = []

    async def begin(
        self, admitted: Admitted, hints: ClientHints, excluded: Sequence[ReplicaId] = ()
    ) -> LiveRequest:
        self.begun.append(tuple(excluded))
        chosen = R2 if R1 in excluded else R1
        route = Decided(BookingId(len(self.begun)), (chosen,), "tie")
        policy = RuleOutcome(PolicySpec(), None)
        live = LiveRequest(admitted.request, route, policy, 4, 1, self.bookings, chosen)  # type: ignore[arg-type]
        self.open.append(live)
        return live

    def end(self, live: LiveRequest) -> None:
        if live in self.open:
            self.open.remove(live)


class World:
    def __init__(self, *answers: Sequence[Item | Exception]) -> None:
        """Each attempt gets the next of `answers`: items, and an exception where it fails."""
        self.router = Router()
        self.finished: list[RequestRecord] = []
        self.counted: list[str] = []
        self._answers = list(answers)
        self.dispatcher = Dispatcher(
            self.router, self._send, self.finished.append, 5.0, 1, self.counted.append
        )
        self.record = RequestRecord(ApiRoute.COMPLETIONS, "t")

    async def _send(self, request: EngineRequest) -> AsyncGenerator[Item, None]:
        for item in self._answers.pop(0):
            if isinstance(item, Exception):
                raise item
            yield item

    async def begin(self, *, is_stream: bool = True):  # type: ignore[no-untyped-def]
        request = EngineRequest("id", Route.COMPLETIONS, b"{}", (), None, is_stream)
        admitted = Admitted("m", Tenant("t"), request, hash_prompts([bytes(40)], 4, None))
        self.record.admit(admitted)
        return await self.dispatcher.begin(admitted, NO_HINTS, self.record)


async def test_the_settlement_is_kept_and_never_sent_to_the_client() -> None:
    world = World([b"one", b"two", SETTLEMENT])
    answer = await world.begin()
    assert [item async for item in answer.stream()] == [b"one", b"two"]
    assert world.record.settlement is SETTLEMENT
    assert (world.finished, world.router.open) == ([world.record], [])


async def test_an_answer_in_one_piece_is_settled_too() -> None:
    world = World([b"{}", SETTLEMENT])
    assert await (await world.begin(is_stream=False)).whole() == b"{}"
    assert world.record.settlement is SETTLEMENT
    assert world.router.bookings.told == []


async def test_a_lost_replica_is_left_out_of_the_next_decision() -> None:
    world = World([EngineDead("gone")], [b"one", SETTLEMENT])
    answer = await world.begin()
    assert [item async for item in answer.stream()] == [b"one"]
    assert world.router.begun == [(), (R1,)]
    assert (world.record.status, world.record.attempts) == (200, 2)
    assert world.finished == [world.record]


async def test_replica_after_replica_lost_is_an_error_and_leaves_nothing_booked() -> None:
    world = World(*[[EngineDead("gone")]] * 3)
    with pytest.raises(NoReplica):
        await world.begin()
    assert (world.router.open, world.finished) == ([], [])


async def test_a_failure_in_a_stream_ends_the_request_with_its_status() -> None:
    world = World([b"one", EngineError("broken")])
    events = [item async for item in (await world.begin()).stream()]
    assert events[0] == b"one" and b"error" in events[1]
    assert (world.record.status, world.router.open) == (500, [])
    assert world.finished == [world.record]


@pytest.mark.parametrize("reads", [0, 1])
async def test_a_client_that_goes_ends_the_request_read_or_not(reads: int) -> None:
    world = World([b"one", b"two", SETTLEMENT])
    answer = await world.begin()
    stream = answer.stream()
    for _ in range(reads):
        await anext(stream)
    await answer.close()
    assert (world.record.status, world.router.open) == (CLIENT_GONE, [])
    assert world.finished == [world.record]


async def test_the_index_hears_of_first_bytes_and_progress() -> None:
    world = World([b"x"] * (PROGRESS_ITEMS + 1))
    async for _ in (await world.begin()).stream():
        pass
    assert world.router.bookings.told == ["first_token", f"progress {PROGRESS_ITEMS}"]


async def test_a_cancelled_wait_for_the_first_byte_leaves_nothing_booked() -> None:
    world = World()
    forever = asyncio.Event()

    async def never(request: EngineRequest) -> AsyncGenerator[Item, None]:
        await forever.wait()
        yield b""

    world.dispatcher = Dispatcher(
        world.router, never, world.finished.append, 5.0, 1, world.counted.append
    )
    waiting = asyncio.create_task(world.begin())
    await asyncio.sleep(0.01)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert world.router.open == []
