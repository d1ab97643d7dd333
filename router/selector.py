"""From requests to decisions: lookup, policy, booking and speculation as one synchronous step.

Pure: index, ledger and membership are passed in, time and chance too. Each request of a batch sees
what the ones before it booked, so that a burst does not herd.
"""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from router.candidates import Candidates, Members, Roster
from router.chooser import Chooser
from router.core.errors import ConfigurationError
from router.core.ledger import Booking, LoadLedger
from router.core.store_directory import StoredPiece
from router.core.types import BookingId, ReplicaId, Slot
from router.decision import (
    Decision,
    Explanation,
    Outcome,
    Rejection,
    RejectionCause,
    SelectRequest,
)
from router.explanations import Explanations
from router.joint_overlap import JointOverlap, Overlap, joined
from router.policies.registry import POLICIES, Registration

Hashes = NDArray[np.uint64]


class PrefixIndex(Protocol):
    """What the selector needs of the block index."""

    def overlaps(self, hashes: Hashes) -> Overlap: ...

    def stored(self, hashes: Hashes) -> Sequence[StoredPiece]: ...

    def speculate(
        self, booking_id: BookingId, slot: Slot, hashes: Hashes, expires_at: float
    ) -> object: ...

    def expect(
        self, booking_id: BookingId, slot: Slot, missing: Hashes, expires_at: float
    ) -> object: ...

    def retract(self, booking_id: BookingId) -> object: ...

    def sweep(self, now: float) -> object: ...

    def forget(self, replica_id: ReplicaId) -> object: ...

    def applied_seq(self, replica_id: ReplicaId) -> int | None: ...


@dataclass(slots=True)
class SelectorCounters:
    """Selections by outcome since the start."""

    decided: int = 0
    repeated: int = 0
    expired: int = 0
    no_replica: int = 0
    invalid_policy: int = 0


class Selector:
    """Decides, books and speculates. One caller at a time; nothing here waits.

    The last `max_decisions` decisions are kept for repeated calls and `max_policies` policies for
    reuse. Speculative entries live `speculative_ttl_s` unless retracted earlier.
    """

    def __init__(
        self,
        index: PrefixIndex,
        ledger: LoadLedger,
        members: Members,
        rng: Random,
        *,
        speculative_ttl_s: float = 30.0,
        max_alternatives: int = 8,
        max_decisions: int = 8192,
        max_policies: int = 64,
        policies: Mapping[str, Registration] = POLICIES,
    ) -> None:
        self.counters = SelectorCounters()
        self._index = index
        self._ledger = ledger
        self._roster = Roster(members)
        self._speculative_ttl_s = speculative_ttl_s
        self._max_decisions = max_decisions
        self._decisions: OrderedDict[BookingId, Decision] = OrderedDict()
        self._explanations = Explanations()
        self._chooser = Chooser(
            ledger,
            rng,
            index.applied_seq,
            max_alternatives=max_alternatives,
            max_policies=max_policies,
            policies=policies,
        )

    def select(self, requests: Sequence[SelectRequest], now: float) -> list[Outcome]:
        """One outcome a request, in their order. O(blocks + candidates · log candidates) each.

        A booking id that was decided before gets the same decision and books nothing.
        """
        candidates = self._roster.at(now)
        outcomes: list[Outcome] = []
        for request in requests:
            outcome = self._outcome_without_lookup(request, now)
            if outcome is None:
                outcome = self._decide(request, candidates, now)
            outcomes.append(outcome)
        return outcomes

    def announce(self, booking: Booking, now: float) -> None:
        """Enters the load of a request that was decided elsewhere. Idempotent."""
        self._drop(self._ledger.book(booking, now))

    def first_token(self, booking_id: BookingId, now: float) -> bool:
        """False where nothing of that id is booked; here and below."""
        return self._ledger.first_token(booking_id, now)

    def progress(self, booking_id: BookingId, output_tokens: int, now: float) -> bool:
        """`output_tokens` so far; renews the booking's lease."""
        return self._ledger.progress(booking_id, output_tokens, now)

    def move(
        self, booking_id: BookingId, replica_id: ReplicaId, now: float, hashes: Hashes | None = None
    ) -> bool:
        """Another replica took the request. With its `hashes` the speculation moves along."""
        slot = self._roster.directory().slots.get(replica_id)
        if slot is None or not self._ledger.move(booking_id, slot):
            return False
        self._index.retract(booking_id)
        if hashes is not None:
            self._index.speculate(booking_id, slot, hashes, now + self._speculative_ttl_s)
        return True

    def settle(self, booking_id: BookingId) -> Booking | None:
        """The request ended: releases and returns its booking, retracts its speculation."""
        self._index.retract(booking_id)
        return self._ledger.settle(booking_id)

    def sweep(self, now: float) -> list[Booking]:
        """Releases what has lapsed by `now`: for a timer. Returns the lapsed bookings."""
        swept = self._ledger.sweep(now)
        self._drop(swept)
        self._index.sweep(now)
        return swept

    def forget(self, replica_id: ReplicaId, slot: Slot) -> list[Booking]:
        """The replica is gone: its blocks, its bookings and their speculation go too."""
        forgotten = self._ledger.forget(slot)
        self._drop(forgotten)
        self._chooser.forget(slot)
        self._index.forget(replica_id)
        return forgotten

    def explain(self, booking_id: BookingId) -> Explanation | None:
        """Why a recent request went where it went; None once it is too long ago."""
        return self._explanations.get(booking_id)

    def _drop(self, bookings: list[Booking]) -> None:
        """What the ledger let go by itself: asked again, these are decided afresh."""
        for booking in bookings:
            self._index.retract(booking.booking_id)
            self._decisions.pop(booking.booking_id, None)

    def _outcome_without_lookup(self, request: SelectRequest, now: float) -> Outcome | None:
        decision = self._decisions.get(request.booking_id)
        if decision is not None:
            self.counters.repeated += 1
            return decision
        if request.expires_at <= now:
            self.counters.expired += 1
            return Rejection(request.booking_id, RejectionCause.EXPIRED)
        return None

    def _decide(self, request: SelectRequest, candidates: Candidates, now: float) -> Outcome:
        slots = candidates.slots_for(request)
        if not len(slots):
            self.counters.no_replica += 1
            return Rejection(request.booking_id, RejectionCause.NO_REPLICA)
        overlap = self._overlap(request)
        try:
            record = self._chooser.choose(request, overlap, slots, candidates.directory, now)
        except ConfigurationError:
            self.counters.invalid_policy += 1
            return Rejection(request.booking_id, RejectionCause.INVALID_POLICY)
        self._commit(request, record.decision, Slot(int(record.choice.ranked[0])), now)
        self._explanations.add(record)
        return record.decision

    def _overlap(self, request: SelectRequest) -> JointOverlap:
        """Only a single prompt is loaded: the others of a list would wait for it."""
        parts = [self._index.overlaps(chain) for chain in request.split_hashes()]
        if request.chains or not request.reads_cache:
            return joined(parts)
        return joined(parts, self._index.stored(request.hashes))

    def _commit(self, request: SelectRequest, decision: Decision, slot: Slot, now: float) -> None:
        """Books and speculates. A booking that outlived its decision here is released first."""
        if request.booking_id in self._ledger:
            self.settle(request.booking_id)
        booking = Booking(
            request.booking_id,
            slot,
            request.tenant,
            request.prompt_tokens,
            decision.uncached_tokens,
            request.block_size,
            request.lease_s,
            decision.load_blocks,
        )
        self.announce(booking, now)
        missing = _missing(request, decision)
        if len(missing):
            expires_at = now + self._speculative_ttl_s
            self._index.expect(request.booking_id, slot, missing, expires_at)
        self._decisions[request.booking_id] = decision
        if len(self._decisions) > self._max_decisions:
            self._decisions.popitem(last=False)
        self.counters.decided += 1


def _missing(request: SelectRequest, decision: Decision) -> Hashes:
    """What a booking is to expect: of several prompts only the one with most left to compute,
    because of the others the events will tell."""
    if not request.chains:
        return request.hashes[decision.overlap_blocks :]
    chains = zip(request.split_hashes(), decision.chain_overlaps, strict=True)
    return max([chain[held:] for chain, held in chains], key=len)
