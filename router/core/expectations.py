"""Runs of blocks that bookings are about to add, found by where they begin. Pure."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from router.core.block_table import Hashes
from router.core.chain_map import Piece
from router.core.types import BookingId, Slot

_ENDING = np.uint64(0xFFFF)
_FEW_BLOCKS = 8


@dataclass(slots=True, eq=False)
class Expectation:
    """A replica is about to hold `hashes[start:]`, consecutive blocks of one chain."""

    booking_id: BookingId
    slot: Slot
    hashes: Hashes
    start: int

    @property
    def first(self) -> int:
        return int(self.hashes[self.start])

    def common_with(self, hashes: Hashes) -> int:
        """Leading blocks that are on a chain which begins with the same one. O(log blocks)."""
        mine, theirs = self.hashes[self.start :].data, hashes.data
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


class Expectations:
    """Expectations by the hash of their first block; the caller bounds how many there are.

    What is in here must not change its `start`: it leaves before and enters again after.
    """

    def __init__(self) -> None:
        self._by_first: dict[int, list[Expectation]] = {}
        # How many of those hashes end in these 16 bits: tells in one step what not to look for.
        self._endings = np.zeros(1 << 16, np.uint16)

    def enter(self, expectation: Expectation) -> None:
        first = expectation.first
        self._by_first.setdefault(first, []).append(expectation)
        self._endings[first & 0xFFFF] += 1

    def leave(self, expectation: Expectation) -> None:
        first = expectation.first
        alike = self._by_first[first]
        alike.remove(expectation)
        if not alike:
            del self._by_first[first]
        self._endings[first & 0xFFFF] -= 1

    def where_a_piece_ends(
        self, keys: memoryview, pieces: Sequence[Piece]
    ) -> list[tuple[int, Expectation]]:
        """Those that begin where a replica's confirmed blocks may end, with the place.

        No others can lengthen what is confirmed: no replica holds the first block that it is
        expected to hold, so what begins elsewhere begins behind a block that this replica lacks.
        """
        starts, total, place = self._by_first, len(keys), 0
        begun: list[tuple[int, Expectation]] = []
        for length, _ in ((0, 0), *pieces):
            place += length
            if place < total and keys[place] in starts:
                begun += [(place, held) for held in starts[keys[place]]]
        return begun

    def along(self, hashes: Hashes) -> Iterator[tuple[int, Expectation]]:
        """Those that begin at a block of this chain, each with the block's place."""
        if not self._by_first:
            return
        keys, starts = hashes.data, self._by_first
        places: Iterable[int] = range(len(hashes))
        if len(hashes) > _FEW_BLOCKS:
            places = self._endings.take((hashes & _ENDING).view(np.int64)).nonzero()[0].tolist()
        for place in places:
            yield from ((place, held) for held in tuple(starts.get(keys[place], ())))

    def check_integrity(self, count: int) -> None:
        """Asserts that `count` expectations are found, each where it begins. O(bookings)."""
        assert sum(map(len, self._by_first.values())) == count == int(self._endings.sum())
        for first, alike in self._by_first.items():
            assert alike and all(held.first == first for held in alike)
