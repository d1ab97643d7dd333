"""Serve's hook alone: which replica it takes, and what it tells the process's switchboard."""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest
from ray.serve._private.common import (
    DeploymentHandleSource,
    DeploymentID,
    ReplicaID,
    RequestMetadata,
)
from ray.serve._private.request_router import PendingRequest

from router.core.types import BookingId, ReplicaId
from router.serve import switchboard
from router.serve.request_router import DecisionRouter
from router.serve.switchboard import DeploymentKey, Member

pytestmark = pytest.mark.ray

LLM = DeploymentID(name="llm", app_name="app")
KEY = DeploymentKey("app", "llm")


@dataclass
class Replica:
    """What the router uses of Serve's `RunningReplica`."""

    name: str
    queue_len: int = 0
    max_ongoing_requests: int = 2
    replica_metadata: dict[str, object] = field(default_factory=lambda: {"block_size": 16})
    probes: int = 0

    @property
    def replica_id(self) -> ReplicaID:
        return ReplicaID(unique_id=self.name, deployment_id=LLM)

    async def get_queue_len(self, *, deadline_s: float) -> int:
        self.probes += 1
        return self.queue_len


@dataclass(frozen=True)
class Directions:
    booking_id: BookingId
    ranked: tuple[ReplicaId, ...]


@dataclass(frozen=True)
class Request:
    routing: Directions | None


@dataclass
class Heard:
    """A listener that writes down what it hears."""

    members: list[Sequence[Member]] = field(default_factory=list)
    routed: list[tuple[BookingId, ReplicaId]] = field(default_factory=list)
    completed: list[BookingId] = field(default_factory=list)
    redirected: list[tuple[BookingId, ReplicaId]] = field(default_factory=list)
    is_forgetful: bool = False

    def on_members(self, members: Sequence[Member]) -> None:
        self.members.append(members)

    async def redirect(self, booking_id: BookingId, replica_id: ReplicaId) -> Request | None:
        """A second decision, under an id of its own."""
        self.redirected.append((booking_id, replica_id))
        if self.is_forgetful:
            return None
        return Request(Directions(BookingId(booking_id + 1), (replica_id,)))

    def on_routed(self, booking_id: BookingId, replica_id: ReplicaId) -> None:
        self.routed.append((booking_id, replica_id))

    def on_completed(self, booking_id: BookingId) -> None:
        self.completed.append(booking_id)


class Result:
    """A call under way; `end` is what Serve does at its end."""

    def __init__(self) -> None:
        self._callbacks: list[Callable[[object], None]] = []

    def add_done_callback(self, callback: Callable[[object], None]) -> None:
        self._callbacks.append(callback)

    def end(self) -> None:
        for callback in self._callbacks:
            callback(None)


@pytest.fixture
def replicas() -> list[Replica]:
    return [Replica(name) for name in "abcd"]


@pytest.fixture
async def router(replicas: list[Replica]) -> DecisionRouter:
    router = DecisionRouter(
        LLM, DeploymentHandleSource.REPLICA, use_replica_queue_len_cache=True, max_backoff_s=0.01
    )
    router.update_replicas(replicas)
    await asyncio.sleep(0.02)  # Serve asks each replica once
    return router


def pending(*ranked: str, request_id: str = "http", has_routing: bool = True) -> PendingRequest:
    directions = Directions(BookingId(7), tuple(map(ReplicaId, ranked))) if has_routing else None
    metadata = RequestMetadata(request_id=request_id, internal_request_id=request_id)
    return PendingRequest(args=[Request(directions)], kwargs={}, metadata=metadata)


async def taken(router: DecisionRouter, request: PendingRequest, **more: bool) -> str:
    replica = await asyncio.wait_for(router._choose_replica_for_request(request, **more), 5)
    return str(replica.replica_id.unique_id)


def fill(router: DecisionRouter, *replicas: Replica) -> None:
    for replica in replicas:
        replica.queue_len = replica.max_ongoing_requests
        router.on_new_queue_len_info(replica.replica_id, replica.queue_len)


async def test_the_decision_is_followed_without_asking_the_replica(
    router: DecisionRouter, replicas: list[Replica]
) -> None:
    probes = [replica.probes for replica in replicas]
    assert await taken(router, pending("c", "a")) == "c"
    assert [replica.probes for replica in replicas] == probes


async def test_a_full_replica_is_passed_over_in_the_order_of_the_decision(
    router: DecisionRouter, replicas: list[Replica]
) -> None:
    fill(router, replicas[2])
    assert await taken(router, pending("c", "a")) == "a"


async def test_a_replica_that_is_gone_is_passed_over(
    router: DecisionRouter, replicas: list[Replica]
) -> None:
    router.on_replica_actor_died(replicas[2].replica_id)
    assert await taken(router, pending("c", "b")) == "b"


async def test_replicas_outside_of_the_decision_are_the_last_resort(
    router: DecisionRouter, replicas: list[Replica]
) -> None:
    fill(router, *replicas[:3])
    assert await taken(router, pending("a", "b", "c")) == "d"


async def test_without_a_decision_requests_spread(router: DecisionRouter) -> None:
    counts = Counter([await taken(router, pending()) for _ in range(200)])
    assert set(counts) == set("abcd") and max(counts.values()) < 100
    assert await taken(router, pending(has_routing=False)) in "abcd"


async def test_an_unreachable_replica_is_not_tried_again_at_once(
    router: DecisionRouter, replicas: list[Replica]
) -> None:
    router.on_replica_actor_unavailable(replicas[0].replica_id)
    assert await taken(router, pending("a", "b"), is_retry=True) == "b"


async def test_a_request_waits_while_all_are_full_and_takes_the_first_slot(
    router: DecisionRouter, replicas: list[Replica]
) -> None:
    fill(router, *replicas)
    waiting = asyncio.create_task(taken(router, pending("a")))
    await asyncio.sleep(0.03)
    assert not waiting.done()
    replicas[3].queue_len = 1
    router.on_new_queue_len_info(replicas[3].replica_id, 1)
    assert await waiting == "d"


async def test_a_request_waits_for_the_first_replica(replicas: list[Replica]) -> None:
    router = DecisionRouter(LLM, DeploymentHandleSource.REPLICA, use_replica_queue_len_cache=True)
    waiting = asyncio.create_task(taken(router, pending()))
    await asyncio.sleep(0.01)
    router.update_replicas(replicas[:1])
    assert await waiting == "a"


async def test_calls_that_share_an_http_request_are_all_answered(
    router: DecisionRouter, replicas: list[Replica]
) -> None:
    """They have one id; while all replicas are full, every one of them waits. One that is just
    asking whether its two are still full may take either."""
    fill(router, *replicas)
    calls = [asyncio.create_task(taken(router, pending(name))) for name in "abcd" * 4]
    await asyncio.sleep(0.02)
    assert not any(call.done() for call in calls)
    for replica in replicas:
        replica.queue_len = 0
        router.on_new_queue_len_info(replica.replica_id, 0)
    assert {await call for call in calls} <= set("abcd")


async def test_the_listener_hears_of_members_routes_and_ends(
    router: DecisionRouter, replicas: list[Replica]
) -> None:
    heard, result = Heard(), Result()
    switchboard.SWITCHBOARD.connect(KEY, heard)
    router.on_replica_actor_died(replicas[0].replica_id)
    router.on_request_routed(pending("b", "c"), replicas[2].replica_id, result)
    assert [[member.replica_id for member in each] for each in heard.members] == [
        ["a", "b", "c", "d"],
        ["b", "c", "d"],
    ]
    assert {member.block_size for member in heard.members[-1]} == {16}
    assert (heard.routed, heard.completed) == ([(7, "c")], [])
    result.end()
    assert heard.completed == [7]


async def test_a_decision_that_is_followed_is_made_once(router: DecisionRouter) -> None:
    heard, request = Heard(), pending("c", "a")
    switchboard.SWITCHBOARD.connect(KEY, heard)
    (decided,) = request.args
    assert await taken(router, request) == "c"
    assert (heard.redirected, request.args) == ([], [decided])
    await taken(router, pending(has_routing=False))
    assert heard.redirected == []


async def test_a_request_that_goes_elsewhere_is_decided_on_anew_before_it_is_sent(
    router: DecisionRouter, replicas: list[Replica]
) -> None:
    """Whether that one was full, or died, or refused the request; and each time anew."""
    heard, request = Heard(), pending("c", "a")
    switchboard.SWITCHBOARD.connect(KEY, heard)
    fill(router, replicas[2])
    assert await taken(router, request) == "a"
    assert (heard.redirected, request.args[0].routing.ranked) == ([(7, "a")], ("a",))
    assert await taken(router, request, is_retry=True) == "a"
    router.on_replica_actor_died(replicas[0].replica_id)
    other = await taken(router, request, is_retry=True)
    assert heard.redirected == [(7, "a"), (8, other)]
    router.on_request_routed(request, replicas["abcd".index(other)].replica_id, Result())
    assert heard.routed == [(9, other)]


async def test_a_choice_that_was_left_to_serve_is_decided_on(router: DecisionRouter) -> None:
    heard, request = Heard(), pending()
    switchboard.SWITCHBOARD.connect(KEY, heard)
    choice = await taken(router, request)
    assert heard.redirected == [(7, choice)]


async def test_a_request_that_nobody_knows_any_more_goes_as_it_is(
    router: DecisionRouter, replicas: list[Replica]
) -> None:
    heard, request = Heard(is_forgetful=True), pending("c", "a")
    switchboard.SWITCHBOARD.connect(KEY, heard)
    (decided,) = request.args
    fill(router, replicas[2])
    assert await taken(router, request) == "a"
    assert (heard.redirected, request.args) == ([(7, "a")], [decided])
