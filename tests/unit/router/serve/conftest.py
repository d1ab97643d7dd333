"""A block index in this process: the real desk, ledger and selector, and faults on request."""

import asyncio
from collections.abc import Iterator, Sequence
from random import Random

import numpy as np
import pytest
from numpy.typing import NDArray

from router.core.errors import IndexUnavailable
from router.core.ledger import LoadLedger
from router.core.types import BookingId, Incarnation, ReplicaId, Slot
from router.selector import Selector
from router.serve.flight_desk import FlightDesk
from router.serve.leases import Lease, ReplicaLeases
from router.serve.wire import Landing, decode_flight, decode_landing, encode

REPLICAS = [ReplicaId(f"replica-{n}") for n in range(4)]


class EmptyOverlap:
    tiers = np.zeros((3, 8), np.int32)
    speculative = np.zeros(8, np.int32)


class EmptyIndex:
    """Holds nothing, so that decisions go by load."""

    def overlaps(self, hashes: NDArray[np.uint64]) -> EmptyOverlap:
        return EmptyOverlap()

    def stored(self, hashes: NDArray[np.uint64]) -> tuple[()]:
        return ()

    def speculate(
        self, booking_id: BookingId, slot: Slot, hashes: NDArray[np.uint64], expires_at: float
    ) -> None: ...

    expect = speculate

    def retract(self, booking_id: BookingId) -> None: ...

    def sweep(self, now: float) -> None: ...

    def forget(self, replica_id: ReplicaId) -> None: ...

    def applied_seq(self, replica_id: ReplicaId) -> None: ...


class LocalIndex:
    """Answers flights like the actor does. `stall` holds answers back, `is_down` refuses calls."""

    def __init__(self) -> None:
        self.flights = 0
        self.is_down = False
        self.running = asyncio.Event()
        self.running.set()
        self._lives = 0
        self.restart()

    def restart(self, replicas: Sequence[ReplicaId] = REPLICAS) -> None:
        """Another life that knows nothing but who is registered."""
        self._lives += 1
        self.ledger = LoadLedger(8)
        self.leases = ReplicaLeases(8, stale_after_s=1e9, forget_after_s=1e9)
        selector = Selector(EmptyIndex(), self.ledger, self.leases, Random(1))
        self._desk = FlightDesk(selector, self.ledger, self.leases, Incarnation(self._lives))
        for slot, replica_id in enumerate(replicas):
            self.register(replica_id, slot)

    def register(self, replica_id: ReplicaId, slot: int) -> None:
        self.leases.add(Lease(replica_id, Incarnation(1), Slot(slot)), self.now())

    def now(self) -> float:
        """A clock that differs from the caller's, as another host's does."""
        return asyncio.get_running_loop().time() + 1e6

    async def exchange(self, flight: bytes) -> Landing:
        self.flights += 1
        desk = self._desk
        await self.running.wait()
        if self.is_down or desk is not self._desk:
            raise IndexUnavailable("down")
        return decode_landing(encode(desk.handle(decode_flight(flight), self.now(), 0)))


@pytest.fixture
async def index() -> LocalIndex:
    return LocalIndex()


@pytest.fixture
def rng() -> Iterator[Random]:
    yield Random(7)
