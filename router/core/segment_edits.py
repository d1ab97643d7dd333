"""Changes to segments: blocks are appended, split off, joined or dropped, holders change.

Callers give the lanes of the blocks; nothing is looked up by hash here.
"""

from collections.abc import Callable

import numpy as np

from router.core.block_table import OFFSET_BITS, OFFSET_MASK, Lanes
from router.core.chain_map import ChainMap
from router.core.segments import MAX_SEGMENT_BLOCKS, NO_SEGMENT
from router.core.set_contents import EMPTY

Change = Callable[[int], int]
"""From a holder set to the one after the change."""


class SegmentEditor:
    """Edits the segments of one map and keeps its counts and the table's places true."""

    def __init__(self, chains: ChainMap) -> None:
        self._chains = chains
        self._table = chains.table
        self._fields = chains.segments

    def alter(self, segment: int, change: Change) -> None:
        """Applies a change to all blocks of a segment."""
        self._chains.set_holders(segment, change(self._fields.holders[segment]))

    def alter_block(self, lane: int, change: Change) -> int:
        """Applies a change to one block; returns the segment that has it and no other."""
        place = self._table.place_view[lane]
        own = self.carve(place >> OFFSET_BITS, place & OFFSET_MASK, 1, np.array([lane]))
        self.alter(own, change)
        return own

    def carve(self, segment: int, first: int, count: int, lanes: Lanes | None) -> int:
        """Splits blocks off their segment; returns the segment that has these blocks and no other.

        `lanes` may be missing where the blocks are the whole segment.
        """
        if count == self._fields.count[segment]:
            return segment
        own = self._fields.allocate(first, count)
        self._write_places(lanes, own, first)
        self._fields.shrink(segment, first, count)
        self._fields.holders[own] = self._fields.holders[segment]
        self._fields.stamp[own] = self._fields.stamp[segment]
        return own

    def append(self, lanes: Lanes, tail: int, change: Change) -> int:
        """Gives inserted blocks a segment; should some be given twice, one that has holes."""
        count = lanes.size
        first = self.grow(count, tail, change)
        segment, places = first >> OFFSET_BITS, np.arange(first, first + count)
        self._table.places[lanes] = places
        surplus = int(np.count_nonzero(self._table.places[lanes] != places))
        if surplus:
            self._chains.thin(segment, surplus)
            self._table.discount(surplus)
        return segment

    def grow(self, count: int, tail: int, change: Change) -> int:
        """The first of `count` places for new blocks: after those of the segment before them where
        that has the same holders, else in a segment of their own."""
        holders = change(EMPTY)
        self._chains.sets.count(holders, count)
        if self._may_extend(tail, holders, count):
            first = self._fields.last[tail] + 1
            self._fields.extend(tail, count)
            return (tail << OFFSET_BITS) + first
        segment = self._fields.allocate(0, count)
        self._fields.holders[segment] = holders
        return segment << OFFSET_BITS

    def join(self, tail: int, segment: int, lanes: Lanes) -> int:
        """Merges a segment, all of whose lanes are given, into the one before it if they agree."""
        if not self._may_extend(tail, self._fields.holders[segment], lanes.size):
            return segment
        self._write_places(lanes, tail, self._fields.last[tail] + 1)
        self._fields.extend(tail, lanes.size)
        self._fields.thin(segment, lanes.size)
        return tail

    def drop(self, segment: int, lanes: Lanes) -> None:
        """Takes these blocks of a segment out of the table."""
        self._table.release(lanes)
        self._chains.thin(segment, lanes.size)

    def _may_extend(self, tail: int, holders: int, count: int) -> bool:
        return (
            tail != NO_SEGMENT
            and holders != EMPTY
            and self._fields.holders[tail] == holders
            and self._fields.count[tail] + count <= MAX_SEGMENT_BLOCKS
            and bool(self._fields.is_whole[tail])
        )

    def _write_places(self, lanes: Lanes | None, segment: int, first: int) -> None:
        if lanes is not None:
            place = (segment << OFFSET_BITS) + first
            self._table.places[lanes] = np.arange(place, place + lanes.size)
