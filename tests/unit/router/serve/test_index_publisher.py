"""A replica's publisher against the real write path of the index, in one process."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from itertools import count
from random import Random

import numpy as np
import pytest

from router.core.errors import IndexUnavailable
from router.core.events import EventBatch, SnapshotChunk, StoredRun
from router.core.store_access import LoadLine
from router.core.types import Incarnation, ReplicaId, StoreId, Tier
from router.serve.index_publisher import IndexPublisher, PublisherSettings, ReplicaTraits
from router.serve.index_service import IndexService
from router.serve.index_settings import IndexSettings
from router.serve.wire import MAX_BATCH_BLOCKS, Receipt, decode_receipt

REPLICA = ReplicaId("r1")
CHAIN = np.random.default_rng(3).integers(1, 2**63, 4096, dtype=np.uint64)
SETTINGS = PublisherSettings(batch_delay_s=0.001, renew_interval_s=0.01, retry_after_s=0.002)


class Cache:
    """A mirror of one growing chain."""

    def __init__(self) -> None:
        self.blocks = 0
        self._told = 0
        self._seq = -1

    def next_batch(self, max_blocks: int) -> EventBatch:
        self._seq += 1
        start, stop = self._told, min(self.blocks, self._told + max_blocks)
        self._told = stop
        return EventBatch(REPLICA, Incarnation(0), self._seq, self._runs(start, stop))

    def snapshot(self, chunk_blocks: int) -> list[SnapshotChunk]:
        self._told = self.blocks
        starts = range(0, max(self.blocks, 1), chunk_blocks)
        return [
            SnapshotChunk(
                REPLICA,
                Incarnation(0),
                self._seq,
                index,
                index == len(starts) - 1,
                self._runs(start, min(start + chunk_blocks, self.blocks)),
            )
            for index, start in enumerate(starts)
        ]

    @staticmethod
    def _runs(start: int, stop: int) -> tuple[StoredRun, ...]:
        parent = int(CHAIN[start - 1]) if start else 0
        return (StoredRun(Tier.GPU, parent, CHAIN[start:stop]),) if stop > start else ()


class Wire:
    """The index behind a connection that can be cut, lose messages and restart."""

    def __init__(self) -> None:
        self.lives = count(1)
        self.is_cut = False
        self.lost_answers = 0
        self.restart()

    def restart(self) -> None:
        settings = IndexSettings(max_replicas=4, max_blocks=10_000)
        self.service = IndexService(settings, Incarnation(next(self.lives)), Random(1))

    def held(self) -> int:
        slot = self.service.leases.get(REPLICA)
        return -1 if slot is None else int(self.service.index.overlaps(CHAIN).tiers[0, slot.slot])

    async def register(self, registration: bytes) -> Receipt:
        return self._answer(self.service.register(registration, self._now()))

    async def apply(self, events: bytes) -> Receipt:
        return self._answer(self.service.apply(events, self._now()))

    async def snapshot(self, part: bytes) -> Receipt:
        return self._answer(self.service.snapshot(part, self._now()))

    async def forget(self, registration: bytes) -> Receipt:
        return self._answer(self.service.forget(registration))

    def _now(self) -> float:
        if self.is_cut:
            raise IndexUnavailable("cut")
        return asyncio.get_running_loop().time()

    def _answer(self, receipt: bytes) -> Receipt:
        if self.lost_answers:
            self.lost_answers -= 1
            raise IndexUnavailable("the answer was lost")
        return decode_receipt(receipt)


async def until(condition: Callable[[], bool], limit_s: float = 2.0) -> None:
    deadline = asyncio.get_running_loop().time() + limit_s
    while not condition():
        assert asyncio.get_running_loop().time() < deadline, "it did not happen in time"
        await asyncio.sleep(0.001)


@pytest.fixture
def cache() -> Cache:
    return Cache()


@pytest.fixture
def wire() -> Wire:
    return Wire()


@pytest.fixture
async def publisher(wire: Wire, cache: Cache) -> AsyncIterator[IndexPublisher]:
    lives = count(100)
    publisher = IndexPublisher(wire, cache, REPLICA, lambda: Incarnation(next(lives)), SETTINGS)
    running = asyncio.create_task(publisher.run())
    yield publisher
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running


async def test_what_a_replica_says_of_itself_is_told_anew_when_it_changes(
    wire: Wire, cache: Cache
) -> None:
    """Without another snapshot, and again to another life of the index."""
    said = [ReplicaTraits(640, StoreId("s"))]
    publisher = IndexPublisher(
        wire, cache, REPLICA, lambda: Incarnation(1), SETTINGS, lambda: said[-1]
    )
    running = asyncio.create_task(publisher.run())
    stores, slots = wire.service.ledger.stores, np.arange(1)

    def share() -> float:
        return float(wire.service.ledger.stores.shares(slots, np.ones(1, np.int32))[0])

    await until(lambda: wire.held() == 0 and np.isnan(share()))
    said.append(ReplicaTraits(640, StoreId("s"), LoadLine(1.0, 1.0, 4.0)))
    await until(lambda: share() == 0.5)
    assert publisher.counters.snapshots == 1
    wire.restart()
    assert np.isinf(share())
    await until(lambda: share() == 0.5)
    assert stores is not wire.service.ledger.stores
    running.cancel()
    await asyncio.wait([running])


def grow(cache: Cache, publisher: IndexPublisher, blocks: int) -> None:
    cache.blocks += blocks
    publisher.notify()


async def test_what_changes_reaches_the_index(
    wire: Wire, cache: Cache, publisher: IndexPublisher
) -> None:
    await until(lambda: wire.held() == 0)
    grow(cache, publisher, 10)

    await until(lambda: wire.held() == 10)


async def test_more_than_a_batch_holds_follows_at_once(
    wire: Wire, cache: Cache, publisher: IndexPublisher
) -> None:
    await until(lambda: publisher.counters.snapshots == 1)
    grow(cache, publisher, 3 * MAX_BATCH_BLOCKS)

    await until(lambda: wire.held() == 3 * MAX_BATCH_BLOCKS)

    assert publisher.counters.snapshots == 1


async def test_a_restarted_index_gets_everything_again(
    wire: Wire, cache: Cache, publisher: IndexPublisher
) -> None:
    grow(cache, publisher, 2000)
    await until(lambda: wire.held() == 2000)

    wire.restart()

    await until(lambda: wire.held() == 2000)
    grow(cache, publisher, 5)
    await until(lambda: wire.held() == 2005)
    assert wire.service.events.refilling == 0


async def test_a_lost_answer_costs_a_repetition_and_no_snapshot(
    wire: Wire, cache: Cache, publisher: IndexPublisher
) -> None:
    await until(lambda: publisher.counters.batches >= 1)
    wire.lost_answers = 1
    grow(cache, publisher, 10)
    await until(lambda: wire.held() == 10)
    grow(cache, publisher, 10)

    await until(lambda: wire.held() == 20)

    assert publisher.counters.failed_calls == 1 and publisher.counters.snapshots == 1
    assert wire.service.index.stats().gaps == 0


async def test_changes_during_a_cut_arrive_after_it(
    wire: Wire, cache: Cache, publisher: IndexPublisher
) -> None:
    await until(lambda: publisher.counters.batches >= 1)
    wire.is_cut = True
    grow(cache, publisher, 10)
    await until(lambda: publisher.counters.failed_calls >= 2)
    assert wire.held() == 0

    wire.is_cut = False
    await until(lambda: wire.held() == 10)


async def test_a_gap_is_closed_by_a_snapshot(
    wire: Wire, cache: Cache, publisher: IndexPublisher
) -> None:
    await until(lambda: publisher.counters.batches >= 1)
    cache.blocks = 10
    cache.next_batch(MAX_BATCH_BLOCKS)
    grow(cache, publisher, 10)

    await until(lambda: wire.held() == 20)

    assert publisher.counters.snapshots == 2


async def test_silence_renews_the_lease(wire: Wire, publisher: IndexPublisher) -> None:
    await until(lambda: publisher.counters.batches >= 3)

    assert publisher.counters.blocks == 0


async def test_a_replica_that_was_forgotten_comes_back_as_another_life(
    wire: Wire, cache: Cache, publisher: IndexPublisher
) -> None:
    grow(cache, publisher, 10)
    await until(lambda: wire.held() == 10)
    first = wire.service.leases.get(REPLICA)
    assert first is not None

    wire.service.sweep(now=1e12)
    assert wire.held() == -1

    await until(lambda: wire.held() == 10)
    second = wire.service.leases.get(REPLICA)
    assert second is not None and second.incarnation > first.incarnation


async def test_good_bye_ends_candidacy_at_once(wire: Wire, cache: Cache) -> None:
    publisher = IndexPublisher(wire, cache, REPLICA, lambda: Incarnation(1), SETTINGS)
    running = asyncio.create_task(publisher.run())
    await until(lambda: wire.held() == 0)
    running.cancel()

    await publisher.close()

    assert wire.held() == -1


async def test_good_bye_to_nobody_is_no_error(wire: Wire, cache: Cache) -> None:
    wire.is_cut = True
    await IndexPublisher(wire, cache, REPLICA, lambda: Incarnation(1), SETTINGS).close()


async def test_its_lag_is_the_age_of_the_oldest_change_that_is_not_confirmed(
    wire: Wire, cache: Cache, publisher: IndexPublisher
) -> None:
    await until(lambda: wire.held() == 0)
    assert publisher.lag_s == 0
    wire.is_cut = True
    grow(cache, publisher, 10)
    await until(lambda: publisher.counters.failed_calls > 0)
    grow(cache, publisher, 1)
    await until(lambda: publisher.lag_s > 0.02)

    wire.is_cut = False

    await until(lambda: wire.held() == 11)
    await until(lambda: publisher.lag_s == 0)


async def test_a_snapshot_confirms_what_waited(
    wire: Wire, cache: Cache, publisher: IndexPublisher
) -> None:
    await until(lambda: wire.held() == 0)
    wire.is_cut = True
    grow(cache, publisher, 10)
    await until(lambda: publisher.counters.failed_calls > 0)
    wire.restart()
    wire.is_cut = False

    await until(lambda: wire.held() == 10)
    await until(lambda: publisher.lag_s == 0)
