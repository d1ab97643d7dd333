"""What bookings are about to compute, and its end with the booking, its time or an event. Pure.

Kept beside the chains, not in them: a booking is entered and ended in constant time, and a lookup
asks only where something is expected. Hashes must be chained, as everywhere in the index.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from router.core.block_table import Hashes
from router.core.chain_map import ChainMap, Piece
from router.core.lapses import LapseQueue
from router.core.types import BookingId, Slot, Tier

Depths = NDArray[np.int32]

_ENDING = np.uint64(0xFFFF)
_FEW_BLOCKS = 8


@dataclass(slots=True, eq=False)
class _Expectation:
    """A replica is about to hold `hashes[start:]`, consecutive blocks of one chain."""

    booking_id: BookingId
    slot: Slot
    hashes: Hashes
    start: int

    @property
    def first(self) -> int:
        return int(self.hashes[self.start])


class Speculation:
    """At most `max_bookings` expectations, found by the hash of their first block."""

    def __init__(self, chains: ChainMap, max_bookings: int) -> None:
        self.refused = 0
        self._chains = chains
        self._sets = chains.sets
        self._max_bookings = max_bookings
        self._by_booking: dict[BookingId, _Expectation] = {}
        self._by_slot: dict[Slot, dict[BookingId, _Expectation]] = {}
        self._by_first: dict[int, list[_Expectation]] = {}
        # How many of those hashes end in these 16 bits: tells in one step what not to look for.
        self._endings = np.zeros(1 << 16, np.uint16)
        self._lapses: LapseQueue[BookingId] = LapseQueue()

    def __len__(self) -> int:
        return len(self._by_booking)

    def add(self, booking_id: BookingId, slot: Slot, hashes: Hashes, expires_at: float) -> None:
        """Expects the blocks from the first that the replica's GPU lacks, until `expires_at`.

        An engine computes everything after the first block that it lacks. A booking that comes
        again gives up what it expected before; past the bound, `refused` counts it.
        """
        self.retract(booking_id)
        start = self._held(slot, hashes)
        if start == len(hashes):
            return
        if len(self._by_booking) >= self._max_bookings:
            self.refused += 1
            return
        # A copy, because the hashes often are a small part of a large message.
        expectation = _Expectation(booking_id, slot, hashes[start:].copy(), 0)
        self._by_booking[booking_id] = expectation
        self._by_slot.setdefault(slot, {})[booking_id] = expectation
        self._lapses.add(booking_id, expires_at)
        self._enter(expectation)

    def retract(self, booking_id: BookingId) -> None:
        """Ends what a booking expects and nothing else. Idempotent."""
        expectation = self._by_booking.pop(booking_id, None)
        if expectation is not None:
            self._leave(expectation)
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
        for place, expectation in self._along(hashes):
            if expectation.slot == slot:
                held = _common(hashes[place:], expectation.hashes[expectation.start :])
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
        begun = self._beginning_where_a_piece_ends(hashes.data, pieces)
        if not begun:
            return confirmed
        depths = confirmed.copy()
        for place, expectation in begun:
            slot = expectation.slot
            if confirmed[slot] == place:
                depth = place + _common(hashes[place:], expectation.hashes[expectation.start :])
                depth = self._further(hashes, pieces, slot, place, depth)
                depths[slot] = max(depth, int(depths[slot]))
        return depths

    def _beginning_where_a_piece_ends(
        self, keys: memoryview, pieces: Sequence[Piece]
    ) -> list[tuple[int, _Expectation]]:
        """Expectations that begin where a replica's confirmed blocks may end, with the place.

        No others can lengthen what is confirmed: no replica holds the first block that it is
        expected to hold, so what begins elsewhere begins behind a block that this replica lacks.
        """
        starts, total, place = self._by_first, len(keys), 0
        begun: list[tuple[int, _Expectation]] = []
        for length, _ in ((0, 0), *pieces):
            place += length
            if place < total and keys[place] in starts:
                begun += [(place, held) for held in starts[keys[place]]]
        return begun

    def _further(
        self, hashes: Hashes, pieces: Sequence[Piece], slot: Slot, place: int, depth: int
    ) -> int:
        """From a depth on, over blocks that the replica holds and others that it is expected to."""
        while depth < len(hashes):
            reached = self._held_up_to(hashes, pieces, slot, depth)
            if len(self._by_slot[slot]) > 1:
                for start, other in self._along(hashes[place + 1 : reached + 1]):
                    if other.slot == slot:
                        start += place + 1
                        common = _common(hashes[start:], other.hashes[other.start :])
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

    def _along(self, hashes: Hashes) -> Iterator[tuple[int, _Expectation]]:
        """Expectations that begin at a block of this chain, each with the block's place."""
        if not self._by_first:
            return
        keys, starts = hashes.data, self._by_first
        places: Iterable[int] = range(len(hashes))
        if len(hashes) > _FEW_BLOCKS:
            places = self._endings.take((hashes & _ENDING).view(np.int64)).nonzero()[0].tolist()
        for place in places:
            yield from ((place, held) for held in tuple(starts.get(keys[place], ())))

    def _of_slot(self, slot: Slot) -> list[_Expectation]:
        return list(self._by_slot.get(slot, {}).values())

    def _leave_slot(self, expectation: _Expectation) -> None:
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

    def _advance(self, expectation: _Expectation, blocks: int) -> None:
        """So many blocks have come true, and those after them that are held."""
        start = expectation.start + blocks
        start += self._held(expectation.slot, expectation.hashes[start:])
        if start == expectation.start:
            return
        if start == len(expectation.hashes):
            self.retract(expectation.booking_id)
        else:
            self._leave(expectation)
            expectation.start = start
            self._enter(expectation)

    def _enter(self, expectation: _Expectation) -> None:
        first = expectation.first
        self._by_first.setdefault(first, []).append(expectation)
        self._endings[first & 0xFFFF] += 1

    def _leave(self, expectation: _Expectation) -> None:
        first = expectation.first
        alike = self._by_first[first]
        alike.remove(expectation)
        if not alike:
            del self._by_first[first]
        self._endings[first & 0xFFFF] -= 1

    def check_integrity(self) -> None:
        """Asserts that every expectation is found where it begins. O(bookings)."""
        entered = [held for alike in self._by_first.values() for held in alike]
        assert len(entered) == len(self._by_booking) == int(self._endings.sum())
        for first, alike in self._by_first.items():
            assert alike and all(held.first == first for held in alike)
        assert sum(map(len, self._by_slot.values())) == len(self._by_booking)
        assert all(booking_id in self._lapses for booking_id in self._by_booking)


def _common(some: Hashes, others: Hashes) -> int:
    """Leading blocks that two chains share, which share the first. O(log blocks)."""
    mine, theirs = some.data, others.data
    low, high = 1, min(len(mine), len(theirs))
    if mine[high - 1] == theirs[high - 1]:
        return high
    while low < high - 1:
        middle = (low + high) // 2
        if mine[middle - 1] == theirs[middle - 1]:
            low = middle
        else:
            high = middle
    return low
