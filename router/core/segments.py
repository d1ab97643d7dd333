"""Chain segments: consecutive blocks of one hash chain that share their holders.

A prompt's blocks are looked up by segment, not one by one: a hash names all before it, so two
blocks of one segment whose offsets differ by as much as their places in the prompt prove all blocks
between them. That holds only while the segment has no hole, which `is_whole` tells.
"""

import numpy as np
from numpy.typing import NDArray

from router.core.set_contents import EMPTY

NO_SEGMENT = 0
"""The number that no segment has."""

MAX_SEGMENT_BLOCKS = 4096


class SegmentTable:
    """Fields of every segment, by its number. At most one segment per lane of the block table.

    `holders` numbers a holder set; `first` and `last` bound the
    offsets of its blocks, `count` says how many there are, `is_whole` whether that is all between
    the bounds, `stamp` when it was last used. The same memory serves scalar reads (these
    attributes) and vector reads (`*_array`).
    """

    def __init__(self, max_segments: int) -> None:
        self.holders_array = np.zeros(max_segments + 1, np.int32)
        self.count_array = np.zeros(max_segments + 1, np.int32)
        self.stamp_array = np.zeros(max_segments + 1, np.int64)
        self._first_array = np.zeros(max_segments + 1, np.int32)
        self._last_array = np.zeros(max_segments + 1, np.int32)
        self.holders = self.holders_array.data
        self.count = self.count_array.data
        self.stamp = self.stamp_array.data
        self.first = self._first_array.data
        self.last = self._last_array.data
        self.is_whole = np.ones(max_segments + 1, np.bool_).data
        self.end = 1
        self._free: list[int] = []

    def __len__(self) -> int:
        return self.end - 1 - len(self._free)

    def allocate(self, first: int, count: int) -> int:
        """A segment of `count` blocks with offsets from `first` on, without holders."""
        number = self._free.pop() if self._free else self.end
        if number == self.end:
            self.end += 1
        self.first[number] = first
        self.last[number] = first + count - 1
        self.count[number] = count
        self.holders[number] = EMPTY
        self.is_whole[number] = True
        self.stamp[number] = 0
        return number

    def extend(self, number: int, blocks: int) -> None:
        """Adds blocks with the offsets after the last."""
        self.last[number] += blocks
        self.count[number] += blocks

    def shrink(self, number: int, first: int, count: int) -> None:
        """Takes out `count` blocks with offsets from `first` on; frees the segment when none stay.

        Blocks taken from the middle leave a hole: the bounds stay and `is_whole` turns false.
        """
        if first == self.first[number]:
            self.first[number] = first + count
        elif first + count - 1 == self.last[number]:
            self.last[number] = first - 1
        self.thin(number, count)

    def thin(self, number: int, count: int) -> None:
        """Takes out `count` blocks from anywhere; frees the segment when none stay."""
        left = self.count[number] = self.count[number] - count
        self.is_whole[number] = left == self.last[number] - self.first[number] + 1
        if not left:
            self._free.append(number)

    def live(self) -> NDArray[np.int64]:
        """The numbers of all segments that have blocks. O(segments)."""
        return np.flatnonzero(self.count_array[: self.end])
