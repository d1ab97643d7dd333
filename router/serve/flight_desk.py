"""The read path inside the actor: one flight in, one landing out. Pure: no Ray, the time comes in.

News is applied before selections, so that a caller's own settled requests do not count against it.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from router.core.ledger import Booking, LoadLedger
from router.core.types import BookingId, Incarnation, ReplicaId, Tenant
from router.decision import Decision, RejectionCause, SelectRequest
from router.decision import Outcome as Selected
from router.policies.base import Hints
from router.policies.registry import PolicySpec
from router.selector import Selector
from router.serve.leases import ReplicaLeases
from router.serve.wire import (
    Announcement,
    Answer,
    Flight,
    Landing,
    Outcome,
    Selection,
    unpack_u64,
)

REFILLING = ":index_refilling"
"""Ends a reason while some replica's blocks are not known yet, as after a restart of the index."""

_OUTCOMES = {
    RejectionCause.EXPIRED: Outcome.EXPIRED,
    RejectionCause.NO_REPLICA: Outcome.NO_REPLICA,
    RejectionCause.INVALID_POLICY: Outcome.INVALID_POLICY,
}


class FlightDesk:
    """Applies flights to the selector of one actor life, `incarnation`."""

    def __init__(
        self,
        selector: Selector,
        ledger: LoadLedger,
        leases: ReplicaLeases,
        incarnation: Incarnation,
    ) -> None:
        self._selector = selector
        self._ledger = ledger
        self._leases = leases
        self._incarnation = incarnation

    def handle(self, flight: Flight, now: float, refilling: int) -> Landing:
        """Raises `ValueError` where the flight contradicts itself; then no selection was made."""
        requests = list(_requests(flight))
        self._leases.doubt(flight.departed, now)
        unplaced = [a.booking_id for a in flight.announced if not self.announce(a, now)]
        self._note(flight, now)
        doubt = REFILLING if refilling else ""
        answers = [_answer(outcome, doubt) for outcome in self._selector.select(requests, now)]
        return self._landing(flight, now, refilling, unplaced, answers)

    def _landing(
        self, flight: Flight, now: float, refilling: int, unplaced: list[int], answers: list[Answer]
    ) -> Landing:
        version = self._leases.version
        members = None
        if version != flight.members_version:
            members = tuple[str, ...](self._leases.members(now))
        return Landing(self._incarnation, now, version, members, refilling, unplaced, answers)

    def announce(self, announced: Announcement, now: float) -> bool:
        """Enters a booking made elsewhere. Idempotent. False where its replica is unknown."""
        lease = self._leases.get(ReplicaId(announced.replica_id))
        if lease is None:
            return False
        booking_id = BookingId(announced.booking_id)
        booking = Booking(
            booking_id,
            lease.slot,
            Tenant(announced.tenant),
            announced.prompt_tokens,
            announced.uncached_tokens,
            announced.block_size,
            announced.lease_s,
        )
        booked = self._ledger.get(booking_id)
        if booked is None:
            self._selector.announce(booking, now)
        elif booked.slot != lease.slot:
            self._selector.move(booking_id, lease.replica_id, now)
        if announced.is_decoding:
            self._selector.first_token(booking_id, now)
        self._selector.progress(booking_id, announced.output_tokens, now)
        return True

    def _note(self, flight: Flight, now: float) -> None:
        """Every kind of news is of another moment in a booking's life, in this order."""
        for key, replica_id in flight.moved:
            self._selector.move(BookingId(key), ReplicaId(replica_id), now)
        for key in unpack_u64(flight.first_tokens).tolist():
            self._selector.first_token(BookingId(key), now)
        for key, output_tokens in flight.progress:
            self._selector.progress(BookingId(key), output_tokens, now)
        for key in unpack_u64(flight.settled).tolist():
            self._selector.settle(BookingId(key))


def _requests(flight: Flight) -> Iterator[SelectRequest]:
    hashes = unpack_u64(flight.hashes)
    specs = [PolicySpec(profile.policy, profile.parameters) for profile in flight.profiles]
    start = 0
    for selection in flight.selections:
        end = start + selection.blocks
        if end > len(hashes) or not 0 <= selection.profile < len(specs):
            raise ValueError("a flight has fewer hashes or profiles than its selections use")
        if selection.chains and sum(selection.chains) != selection.blocks:
            raise ValueError("the chains of a selection are not its blocks")
        yield _request(selection, hashes[start:end], specs[selection.profile])
        start = end


def _request(selection: Selection, hashes: NDArray[np.uint64], spec: PolicySpec) -> SelectRequest:
    return SelectRequest(
        selection.booking_id,
        selection.tenant,
        hashes,
        selection.prompt_tokens,
        selection.block_size,
        selection.expires_at,
        selection.lease_s,
        spec,
        selection.reads_cache,
        selection.candidates,
        selection.excluded,
        Hints(selection.output_tokens, selection.session_hint),
        selection.chains,
    )


def _answer(outcome: Selected, doubt: str) -> Answer:
    if not isinstance(outcome, Decision):
        return Answer(_OUTCOMES[outcome.cause])
    return Answer(
        Outcome.CHOSEN,
        outcome.reason + doubt,
        outcome.ranked,
        outcome.overlap_blocks,
        outcome.speculative_blocks,
        outcome.forecast_blocks,
        outcome.uncached_tokens,
        outcome.load_blocks,
        outcome.chain_overlaps,
        outcome.decided_seq,
        outcome.loads,
        outcome.seen_blocks,
    )
