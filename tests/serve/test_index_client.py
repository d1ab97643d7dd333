"""Clients and publishers on the block index's actor while it is killed, frozen and replaced."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from random import Random

import msgspec
import numpy as np
import pytest
import ray
from ray.actor import ActorHandle

from router.core.events import EventBatch, SnapshotChunk, StoredRun
from router.core.types import Incarnation, ReplicaId, Tier
from router.serve.flights import RoutingRequest
from router.serve.generations import NAMESPACE, open_index, remove_index
from router.serve.index_actor import BlockIndexActor
from router.serve.index_client import IndexClient, Route
from router.serve.index_connection import NamedIndex
from router.serve.index_publisher import IndexPublisher
from router.serve.index_settings import IndexSettings
from router.serve.index_socket import SocketCaller
from router.serve.link_settings import LinkSettings

pytestmark = pytest.mark.ray

SETTINGS = IndexSettings(max_replicas=16, max_blocks=100_000, sweep_interval_s=0.05)
CALM = LinkSettings(deadline_s=1.0)
"""For tests in which the machine's other work must not look like a fault of the index."""
REPLICAS = 4


def chain(seed: int, blocks: int = 64) -> np.ndarray:
    return np.random.default_rng(seed).integers(1, 2**63, blocks, dtype=np.uint64)


def prompt(seed: int) -> RoutingRequest:
    return RoutingRequest(chain(seed).tobytes(), 64 * 16, 16)


def is_breaker_open(client: IndexClient) -> bool:
    counters = client.counters()
    return counters["breaker_opened"] > counters["breaker_closed"]


async def until(condition: Callable[[], bool], limit_s: float = 10.0) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        await asyncio.sleep(0.02)


class Cache:
    """A mirror that holds a few chains from the start; chain n is held by replica n."""

    def __init__(self, replica_id: ReplicaId, seeds: list[int]) -> None:
        self._replica_id = replica_id
        self._seeds = seeds
        self._seq = -1

    def next_batch(self, max_blocks: int) -> EventBatch:
        self._seq += 1
        return EventBatch(self._replica_id, Incarnation(0), self._seq)

    def snapshot(self, chunk_blocks: int) -> list[SnapshotChunk]:
        runs = tuple(StoredRun(Tier.GPU, 0, chain(seed)) for seed in self._seeds)
        return [SnapshotChunk(self._replica_id, Incarnation(0), self._seq, 0, True, runs)]


@asynccontextmanager
async def publishing(application: str) -> AsyncIterator[list[IndexPublisher]]:
    """Replicas `r0` to `r3` that hold chain 0 to 3."""
    connection = NamedIndex(application, "model")
    publishers = []
    for number in range(REPLICAS):
        replica_id = ReplicaId(f"r{number}")
        publishers.append(
            IndexPublisher(
                connection,
                Cache(replica_id, [number]),
                replica_id,
                lambda: Incarnation(time.time_ns()),
            )
        )
    tasks = [asyncio.create_task(publisher.run()) for publisher in publishers]
    try:
        await until(lambda: all(p.counters.batches for p in publishers))
        yield publishers
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@pytest.fixture
def application(ray_cluster: None, request: pytest.FixtureRequest) -> Iterator[str]:
    name = f"client-{request.node.name}"
    yield name
    remove_index(name, "model")


@pytest.fixture
def actor(application: str) -> ActorHandle:
    return open_index(application, "model", SETTINGS)


@asynccontextmanager
async def client_of(
    application: str, settings: LinkSettings | None = None, seed: int = 1
) -> AsyncIterator[IndexClient]:
    client = IndexClient(NamedIndex(application, "model"), Random(seed), settings)
    try:
        yield client
    finally:
        await client.close()


def pid_of(actor: ActorHandle) -> int:
    return int(ray.get(actor.__ray_call__.remote(lambda _: os.getpid()), timeout=10))


async def stats_of(actor: ActorHandle) -> dict[str, object]:
    stats: dict[str, object] = msgspec.msgpack.decode(await actor.stats.remote())
    return stats


async def until_booked(actor: ActorHandle, bookings: int, limit_s: float = 10.0) -> None:
    """A client's news reaches the actor a little later than the client's own books."""
    deadline = time.monotonic() + limit_s
    while (found := (await stats_of(actor))["bookings"]) != bookings:
        assert time.monotonic() < deadline, f"{found} bookings, not {bookings}"
        await asyncio.sleep(0.02)


async def until_empty(actor: ActorHandle) -> None:
    await until_booked(actor, 0)


async def settled(client: IndexClient, seed: int) -> Route:
    """A request that has ended by the time it returns."""
    route = await client.select(prompt(seed))
    client.settle(route.booking_id)
    return route


async def overlap_of(client: IndexClient, seed: int) -> int:
    """As the index says, however often this process had to decide alone."""
    deadline = time.monotonic() + 60
    while (route := await settled(client, seed)).is_fallback:
        assert time.monotonic() < deadline, "the index does not answer"
        await asyncio.sleep(0.02)
    return route.overlap_blocks


async def test_follows_what_replicas_hold(application: str, actor: ActorHandle) -> None:
    async with publishing(application), client_of(application, CALM) as client:
        routes = [await settled(client, seed) for seed in range(REPLICAS)]

        assert [route.replica_id for route in routes] == ["r0", "r1", "r2", "r3"]
        assert {route.overlap_blocks for route in routes} == {64}
        await until_empty(actor)


async def test_flights_on_one_node_do_not_wait_for_the_actors_other_calls(
    application: str, actor: ActorHandle
) -> None:
    async with publishing(application), client_of(application, CALM) as client:
        await settled(client, 0)
        busy = actor.__ray_call__.remote(lambda _: time.sleep(2))

        routes = [await settled(client, seed) for seed in range(REPLICAS)]

        assert {route.overlap_blocks for route in routes} == {64}
        assert ray.wait([busy], timeout=0) == ([], [busy])
        await busy


async def test_flights_go_through_ray_where_the_socket_is_out_of_reach(
    application: str, actor: ActorHandle, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refused(address: str) -> SocketCaller:
        raise ConnectionRefusedError(address)

    monkeypatch.setattr(SocketCaller, "connect", refused)
    async with publishing(application), client_of(application, CALM) as client:
        assert await overlap_of(client, 1) == 64
        await until_empty(actor)


async def test_a_killed_index_costs_no_request_and_is_as_before_in_three_seconds(
    application: str, actor: ActorHandle
) -> None:
    """Callers go on; afterwards the same blocks are known and the same requests booked."""
    async with publishing(application), client_of(application) as client:
        await overlap_of(client, 0)
        live = [await client.select(prompt(seed)) for seed in range(REPLICAS)]
        killed_at = time.monotonic()
        os.kill(pid_of(actor), signal.SIGKILL)
        slowest_s, routes = 0.0, []
        while time.monotonic() < killed_at + 3:
            started = time.monotonic()
            routes.append(await settled(client, len(routes) % REPLICAS))
            slowest_s = max(slowest_s, time.monotonic() - started)
            await asyncio.sleep(0.005)

        assert all(route.ranked for route in routes)
        assert any(route.is_fallback for route in routes)
        assert slowest_s < 0.5
        assert [await overlap_of(client, seed) for seed in range(REPLICAS)] == [64] * REPLICAS
        await until_booked(actor, REPLICAS)
        for route in live:
            client.settle(route.booking_id)
        await until_empty(actor)


async def test_a_frozen_index_is_left_alone_and_taken_up_again(
    application: str, actor: ActorHandle
) -> None:
    """Two seconds stopped: the breaker opens, late answers are released, nothing stays booked."""
    async with publishing(application), client_of(application) as client:
        await overlap_of(client, 0)
        pid = pid_of(actor)
        os.kill(pid, signal.SIGSTOP)
        frozen_at = time.monotonic()
        try:
            while time.monotonic() < frozen_at + 2:
                assert (await settled(client, 1)).ranked
                await asyncio.sleep(0.005)
            assert is_breaker_open(client)
        finally:
            os.kill(pid, signal.SIGCONT)
        await until(lambda: not is_breaker_open(client), limit_s=60)

        counters = client.counters()
        assert counters["breaker_opened"] >= 1 and counters["fallback_breaker_open"] > 0
        assert counters["fallback_deadline"] >= 3
        await until_empty(actor)
        assert client.in_flight() == {}


class OlderProtocol(BlockIndexActor):
    """The same index as code of another protocol sees it."""

    def hello(self, protocol: int) -> tuple[int, str]:
        return protocol - 1, ""


async def test_clients_and_replicas_follow_a_successor(application: str) -> None:
    """Requests go on over the hand-over; those that were live before it end in the successor."""
    older = ray.remote(OlderProtocol).options(
        name=f"block-index/{application}/model/1",
        namespace=NAMESPACE,
        lifetime="detached",
        num_cpus=0,
    )
    older.remote(SETTINGS.packed())
    async with publishing(application), client_of(application, CALM) as client:
        live = [await client.select(prompt(seed)) for seed in range(REPLICAS)]

        successor = await asyncio.to_thread(open_index, application, "model", SETTINGS)

        assert (await stats_of(successor))["bookings"] == REPLICAS
        routes = [await settled(client, seed) for seed in range(REPLICAS)]
        assert not any(route.is_fallback for route in routes)
        assert [route.overlap_blocks for route in routes] == [64] * REPLICAS
        for route in live:
            client.settle(route.booking_id)
        await until_empty(successor)


@ray.remote(num_cpus=0)
class Ingress:
    """A caller in a process of its own."""

    async def run(self, application: str, seed: int, requests: int) -> dict[str, int]:
        async with client_of(application, CALM, seed) as client:
            rng = Random(seed)
            await asyncio.gather(*(self._request(client, rng) for _ in range(requests)))
            return client.counters()

    async def _request(self, client: IndexClient, rng: Random) -> None:
        route = await client.select(prompt(rng.randrange(REPLICAS)))
        client.first_token(route.booking_id)
        client.settle(route.booking_id)

    async def abandon(self, application: str, requests: int) -> None:
        """Books and dies with it."""
        self.client = IndexClient(
            NamedIndex(application, "model"), Random(9), LinkSettings(deadline_s=5, lease_s=1.0)
        )
        await asyncio.gather(*(self.client.select(prompt(0)) for _ in range(requests)))


async def test_several_processes_share_one_index(application: str, actor: ActorHandle) -> None:
    async with publishing(application):
        callers = [Ingress.remote() for _ in range(3)]
        counters = await asyncio.gather(
            *(caller.run.remote(application, seed, 200) for seed, caller in enumerate(callers))
        )

        assert [row["selected"] for row in counters] == [200] * 3
        assert all(row["flights"] < 150 for row in counters)
        await until_empty(actor)
        assert (await stats_of(actor))["ledger"]["booked"] == 600  # type: ignore[index]


async def test_what_a_dead_ingress_booked_lapses_by_itself(
    application: str, actor: ActorHandle
) -> None:
    async with publishing(application):
        ingress = Ingress.remote()
        await ingress.abandon.remote(application, 200)
        assert (await stats_of(actor))["bookings"] == 200

        ray.kill(ingress)

        await until_empty(actor)
        assert (await stats_of(actor))["ledger"]["swept"] == 200  # type: ignore[index]


async def test_without_an_index_requests_are_still_placed(application: str) -> None:
    async with client_of(application) as client:
        client.update_members([ReplicaId("r0"), ReplicaId("r1")])

        route = await client.select(prompt(0))

        assert route.is_fallback and route.ranked
        assert route.reason in ("fallback:unavailable", "fallback:deadline")


async def test_an_index_that_appears_later_is_found(application: str) -> None:
    async with client_of(application, CALM) as client:
        await client.select(prompt(0))
        await asyncio.to_thread(open_index, application, "model", SETTINGS)

        async with publishing(application):
            route = await settled(client, 2)
            with suppress(AssertionError):
                await until(lambda: not is_breaker_open(client), limit_s=2)
            route = await settled(client, 2)

        assert route.replica_id == "r2"
