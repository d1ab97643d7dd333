"""Who expects a block on a replica before any event says so.

A booking claims the blocks that its request will compute. Blocks carry the number of an interned
set of claiming bookings, so that the end of one booking removes its own claim and nothing else.
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from router.core.holder_sets import unpack
from router.core.lapses import LapseQueue
from router.core.types import BookingId, Slot

NO_OWNERS = 0
"""The number of the set without owners."""


@dataclass(slots=True)
class Claim:
    """One booking's speculative entries and the segments that carry them."""

    slot: Slot
    segments: set[int] = field(default_factory=set)


class Claims:
    """At most `max_claims` bookings; `masks[number]` has the bits of a set's replica slots.

    `link` and `unlink` keep count of the segments that carry a set; a set without any is freed.
    """

    def __init__(self, max_claims: int, columns: int, replicas: int) -> None:
        self._replicas = replicas
        self.masks = np.zeros((4 * max_claims + 1, (columns + 63) // 64), np.uint64)
        self.by_booking: dict[BookingId, Claim] = {}
        self._max_claims = max_claims
        self._members: list[frozenset[BookingId]] = [frozenset()]
        self._carriers = [0]
        self._interned: dict[frozenset[BookingId], int] = {frozenset(): NO_OWNERS}
        self._indicators: dict[int, NDArray[np.int32]] = {}
        self._free: list[int] = []
        self._lapses: LapseQueue[BookingId] = LapseQueue()

    def open(self, booking_id: BookingId, slot: Slot, expires_at: float) -> bool:
        """Starts a booking's claim; false where there are too many."""
        if len(self.by_booking) >= self._max_claims:
            return False
        self.by_booking[booking_id] = Claim(slot)
        self._lapses.add(booking_id, expires_at)
        return True

    def close(self, booking_id: BookingId) -> None:
        """Ends a claim that no segment carries any more."""
        assert not self.by_booking[booking_id].segments
        del self.by_booking[booking_id]
        if booking_id in self._lapses:
            self._lapses.remove(booking_id)

    def lapsed(self, now: float) -> list[BookingId]:
        """The claims whose time is over, each told once; the caller ends them."""
        return self._lapses.lapsed(now)

    def of_slot(self, slot: Slot) -> list[BookingId]:
        return [booking for booking, claim in self.by_booking.items() if claim.slot == slot]

    def with_owner(self, number: int, booking_id: BookingId) -> int:
        """The set with one more owner; unchanged where no number is left for it."""
        return self._intern(self._members[number] | {booking_id}, number)

    def without_owner(self, number: int, booking_id: BookingId) -> int:
        return self._intern(self._members[number] - {booking_id}, NO_OWNERS)

    def without_slot(self, number: int, slot: Slot) -> int:
        """The set without the owners that are booked on this replica."""
        if number == NO_OWNERS:
            return NO_OWNERS
        by_booking = self.by_booking
        kept = frozenset(b for b in self._members[number] if by_booking[b].slot != slot)
        return self._intern(kept, NO_OWNERS)

    def link(self, number: int, segment: int) -> None:
        """The segment carries the set from now on."""
        if number == NO_OWNERS:
            return
        self._carriers[number] += 1
        for booking_id in self._members[number]:
            self.by_booking[booking_id].segments.add(segment)

    def unlink(self, number: int, segment: int) -> None:
        """The segment carries the set no longer."""
        if number == NO_OWNERS:
            return
        for booking_id in self._members[number]:
            self.by_booking[booking_id].segments.discard(segment)
        self._carriers[number] -= 1
        if not self._carriers[number]:
            del self._interned[self._members[number]]
            self._members[number] = frozenset()
            self._indicators.pop(number, None)
            self._free.append(number)

    def indicator(self, number: int) -> NDArray[np.int32]:
        """Shape [replicas], 1 where a booking of that replica is among the owners. Not to be
        written."""
        cached = self._indicators.get(number)
        if cached is None:
            cached = unpack(self.masks[number])[: self._replicas].astype(np.int32)
            self._indicators[number] = cached
        return cached

    def members(self, number: int) -> frozenset[BookingId]:
        return self._members[number]

    def _intern(self, members: frozenset[BookingId], otherwise: int) -> int:
        number = self._interned.get(members)
        if number is not None:
            return number
        if self._free:
            number = self._free.pop()
        elif len(self._members) < len(self.masks):
            number = len(self._members)
            self._members.append(frozenset())
            self._carriers.append(0)
        else:
            return otherwise
        self._members[number] = members
        self._interned[members] = number
        self._write_mask(number, members)
        return number

    def _write_mask(self, number: int, members: frozenset[BookingId]) -> None:
        mask = self.masks[number]
        mask[:] = 0
        for slot in {self.by_booking[booking].slot for booking in members}:
            mask[slot >> 6] |= np.uint64(1 << (slot & 63))
