"""A block index that is too simple to be wrong, and short ways to write chains and batches."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from router.core.events import NO_PARENT, EventBatch, RemovedRun, StoredRun
from router.core.hashing import hash_blocks
from router.core.types import BookingId, Incarnation, ReplicaId, Tier

R1, R2, R3 = ReplicaId("R1"), ReplicaId("R2"), ReplicaId("R3")
FIRST_LIFE = Incarnation(1)

Hashes = NDArray[np.uint64]


def chain(text: str) -> Hashes:
    """One block per letter, so that equal leading letters are equal leading blocks."""
    return hash_blocks(np.array([ord(c) for c in text], "<u4").tobytes(), 1)


def run(text: str, *, after: str = "", tier: Tier = Tier.GPU) -> StoredRun:
    """The blocks of `text` in the chain that starts with `after`."""
    hashes = chain(after + text)
    parent = int(hashes[len(after) - 1]) if after else NO_PARENT
    return StoredRun(tier, parent, hashes[len(after) :])


def gone(text: str, *, after: str = "", tier: Tier = Tier.GPU) -> RemovedRun:
    return RemovedRun(tier, chain(after + text)[len(after) :])


def batch(
    seq: int,
    *changes: StoredRun | RemovedRun,
    replica: ReplicaId = R1,
    incarnation: Incarnation = FIRST_LIFE,
    cleared: tuple[Tier, ...] = (),
) -> EventBatch:
    stored = tuple(change for change in changes if isinstance(change, StoredRun))
    removed = tuple(change for change in changes if isinstance(change, RemovedRun))
    return EventBatch(replica, incarnation, seq, stored, removed, cleared)


@dataclass
class _Expectation:
    replica: ReplicaId
    hashes: list[int]
    expires_at: float

    def drop_leading(self, held: set[int]) -> None:
        while self.hashes and self.hashes[0] in held:
            del self.hashes[0]


@dataclass
class NaiveIndex:
    """Sets of hashes by replica and tier; every question is answered block by block."""

    held: dict[ReplicaId, list[set[int]]] = field(default_factory=dict)
    expected: dict[BookingId, _Expectation] = field(default_factory=dict)

    def register(self, replica: ReplicaId) -> None:
        self.held[replica] = [set(), set(), set()]
        self._forget_expectations(replica)

    def forget(self, replica: ReplicaId) -> None:
        self.held.pop(replica, None)
        self._forget_expectations(replica)

    def apply(self, change: EventBatch) -> None:
        held = self.held[change.replica_id]
        for tier in change.cleared:
            held[tier].clear()
        for group in change.removed:
            held[group.tier] -= set(group.hashes.tolist())
        for stored in change.stored:
            held[stored.tier] |= set(stored.hashes.tolist())
            if stored.tier is Tier.GPU:
                self._confirm(change.replica_id)

    def replace(self, replica: ReplicaId, runs: list[StoredRun]) -> None:
        held = self.held[replica] = [set(), set(), set()]
        for stored in runs:
            held[stored.tier] |= set(stored.hashes.tolist())
        self._confirm(replica)

    def speculate(
        self, booking: BookingId, replica: ReplicaId, hashes: Hashes, expires_at: float
    ) -> None:
        expectation = _Expectation(replica, hashes.tolist(), expires_at)
        expectation.drop_leading(self.held[replica][Tier.GPU])
        self.expected[booking] = expectation

    def retract(self, booking: BookingId) -> None:
        self.expected.pop(booking, None)

    def sweep(self, now: float) -> None:
        self.expected = {b: e for b, e in self.expected.items() if e.expires_at > now}

    def tiers(self, replica: ReplicaId, hashes: Hashes) -> list[int]:
        """Leading blocks at each tier or a faster one."""
        held = self.held.get(replica, [set(), set(), set()])
        faster = [set().union(*held[: tier + 1]) for tier in Tier]
        return [_leading(hashes, known) for known in faster]

    def speculative(self, replica: ReplicaId, hashes: Hashes) -> int:
        known = set(self.held[replica][Tier.GPU]) if replica in self.held else set()
        for expectation in self.expected.values():
            if expectation.replica == replica:
                known |= set(expectation.hashes)
        return _leading(hashes, known)

    def _confirm(self, replica: ReplicaId) -> None:
        for expectation in self.expected.values():
            if expectation.replica == replica:
                expectation.drop_leading(self.held[replica][Tier.GPU])

    def _forget_expectations(self, replica: ReplicaId) -> None:
        self.expected = {b: e for b, e in self.expected.items() if e.replica != replica}


def _leading(hashes: Hashes, known: set[int]) -> int:
    for depth, block_hash in enumerate(hashes.tolist()):
        if block_hash not in known:
            return depth
    return len(hashes)
