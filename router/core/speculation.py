"""What bookings are about to compute, and its end with the booking, its time or an event. Pure.

Kept beside the chains, not in them: a booking is entered and ended in constant time, and a lookup
asks only where something is expected. Hashes must be chained, as everywhere in the index.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from router.core.block_table import Hashes
from router.core.chain_map import ChainMap, Piece
from router.core.expectations import Expectation, Expectations
from router.core.lapses import LapseQueue
from router.core.types import BookingId, Slot, Tier

Depths = NDArray[np.int32]


class Speculation:
    """At most `max_bookings` expectations, one of each booking."""

    def __init__(self, chains: ChainMap, max_bookings: int) -> None:
        self.refused = 0
        self._chains = chains
        self._sets = chains.sets
        self._max_bookings = max_bookings
        self._by_booking: dict[BookingId, Expectation] = {}
        self._by_slot: dict[Slot, dict[BookingId, Expectation]] = {}
        self._expectations = Expectations()
        self._lapses: LapseQueue[BookingId] = LapseQueue()

    def __len__(self) -> int:
        return len(self._by_booking)

    def add(self, booking_id: BookingId, slot: Slot, hashes: Hashes, expires_at: float) -> None:
        """Expects the blocks from the first that the replica's GPU lacks, until `expires_at`.

        An engine computes everything after the first block that it lacks. A booking that comes
        again gives up what it expected before; past the bound, `refused` counts it.
        """
        self.add_missing(booking_id, slot, hashes[self._held(slot, hashes) :], expires_at)

    def add_missing(
        self, booking_id: BookingId, slot: Slot, hashes: Hashes, expires_at: float
    ) -> None:
        """As `add`, for hashes of which the replica's GPU lacks the first, if there are any."""
        self.retract(booking_id)
        if not len(hashes):
            return
        if len(self._by_booking) >= self._max_bookings:
            self.refused += 1
            return
        # A copy, because the hashes often are a small part of a large message.
        expectation = Expectation(booking_id, slot, hashes.copy(), 0)
        self._by_booking[booking_id] = expectation
        self._by_slot.setdefault(slot, {})[booking_id] = expectation
        self._lapses.add(booking_id, expires_at)
        self._expectations.enter(expectation)

    def retract(self, booking_id: BookingId) -> None:
        """Ends what a booking expects and nothing else. Idempotent."""
        expectation = self._by_booking.pop(booking_id, None)
        if expectation is not None:
            self._expectations.leave(expectation)
            self._leave_slot(expectation)
            if booking_id in self._lapses:
                self._lapses.remove(booking_id)

    def retract_slot(self, slot: Slot) -> None:
        """Ends all that is expected of a replica. O(bookings)."""
        for expectation in self._of_slot(slot):
            self.retract(expectation.booking_id)

    def sweep(self, now: float) -> None:
        """Ends what has not come true in its time."""
        for booking_id in self._lapses.lapsed(now):
            self.retract(booking_id)

    def confirm(self, slot: Slot, hashes: Hashes) -> None:
        """The replica's GPU has come to hold these blocks: they are expected no longer."""
        if slot not in self._by_slot:
            return
        for place, expectation in self._expectations.along(hashes):
            if expectation.slot == slot:
                held = expectation.common_with(hashes[place:])
                self._advance(expectation, held)

    def confirm_all(self, slot: Slot) -> None:
        """As `confirm` for whatever the replica's GPU holds. O(bookings)."""
        for expectation in self._of_slot(slot):
            self._advance(expectation, 0)

    def extend(self, hashes: Hashes, pieces: Sequence[Piece], confirmed: Depths) -> Depths:
        """Leading blocks of a prompt by slot if what is expected counts as held.

        `confirmed` is what is held for certain, according to the prompt's `pieces`; returned as it
        is where that is all.
        """
        begun = self._expectations.where_a_piece_ends(hashes.data, pieces)
        if not begun:
            return confirmed
        depths = confirmed.copy()
        for place, expectation in begun:
            slot = expectation.slot
            if confirmed[slot] == place:
                depth = place + expectation.common_with(hashes[place:])
                depth = self._further(hashes, pieces, slot, place, depth)
                depths[slot] = max(depth, int(depths[slot]))
        return depths

    def _further(
        self, hashes: Hashes, pieces: Sequence[Piece], slot: Slot, place: int, depth: int
    ) -> int:
        """From a depth on, over blocks that the replica holds and others that it is expected to."""
        while depth < len(hashes):
            reached = self._held_up_to(hashes, pieces, slot, depth)
            if len(self._by_slot[slot]) > 1:
                for start, other in self._expectations.along(hashes[place + 1 : reached + 1]):
                    if other.slot == slot:
                        start += place + 1
                        common = other.common_with(hashes[start:])
                        reached = max(reached, start + common)
            if reached == depth:
                break
            depth = reached
        return depth

    def _held_up_to(self, hashes: Hashes, pieces: Sequence[Piece], slot: Slot, depth: int) -> int:
        """To where the replica's GPU holds every block from a depth on."""
        end = 0
        for length, segment in pieces:
            end += length
            if end > depth:
                if not self._sets.holds(self._chains.segments.holders[segment], slot, Tier.GPU):
                    return depth
                depth = end
        return depth if depth <= end else depth + self._held(slot, hashes[depth:])

    def _of_slot(self, slot: Slot) -> list[Expectation]:
        return list(self._by_slot.get(slot, {}).values())

    def _leave_slot(self, expectation: Expectation) -> None:
        own = self._by_slot[expectation.slot]
        del own[expectation.booking_id]
        if not own:
            del self._by_slot[expectation.slot]

    def _held(self, slot: Slot, hashes: Hashes) -> int:
        """Leading blocks that the replica's GPU holds."""
        if not len(hashes):
            return 0
        held, holders = 0, self._chains.segments.holders
        for blocks, segment in self._chains.walk(hashes):
            if not self._sets.holds(holders[segment], slot, Tier.GPU):
                break
            held += blocks
        return held

    def _advance(self, expectation: Expectation, blocks: int) -> None:
        """So many blocks have come true, and those after them that are held."""
        start = expectation.start + blocks
        start += self._held(expectation.slot, expectation.hashes[start:])
        if start == expectation.start:
            return
        if start == len(expectation.hashes):
            self.retract(expectation.booking_id)
        else:
            self._expectations.leave(expectation)
            expectation.start = start
            self._expectations.enter(expectation)

    def check_integrity(self) -> None:
        """Asserts that every expectation is found by all its keys. O(bookings)."""
        self._expectations.check_integrity(len(self._by_booking))
        assert sum(map(len, self._by_slot.values())) == len(self._by_booking)
        assert all(booking_id in self._lapses for booking_id in self._by_booking)
