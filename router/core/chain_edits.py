"""Changes to chains: runs of blocks enter, change their holders, split off their segment or leave.

A change is a pure function from a segment's holder set to its next one; this module finds the
segments that it concerns and splits those that it concerns in part.
"""

from collections.abc import Callable

import numpy as np

from router.core.block_table import OFFSET_BITS, OFFSET_MASK, Hashes, Lanes
from router.core.chain_map import ChainMap, runs_of
from router.core.holder_sets import EMPTY
from router.core.segments import MAX_SEGMENT_BLOCKS, NO_SEGMENT

Change = Callable[[int], int]
"""From a holder set to the one after the change."""

MAX_EDIT_BLOCKS = 2048
"""Blocks of a run that are better placed in one call: room is made between calls."""

_MAX_JUMPS = 8
_FEW_BLOCKS = 4


class ChainEditor:
    """Edits one map. Every method leaves it consistent."""

    def __init__(self, chains: ChainMap) -> None:
        self._chains = chains
        self._table = chains.table
        self._fields = chains.segments

    def place(self, parent: int, hashes: Hashes, change: Change) -> None:
        """Applies a change to every block of a chain run, entering those that are not known.

        `parent` is the hash before the run, 0 where there is none or it is not known.
        """
        keys = hashes.data
        total, at = len(keys), 0
        tail = self._chains.segment_ending_with(parent) if parent else NO_SEGMENT
        touched = [tail] if tail else []
        while at < total and len(touched) < _MAX_JUMPS:
            found = self._chains.jump(keys, at, total)
            if found is None or not found[2]:
                break
            segment, first, length = found
            lanes = self._lanes_of_part(segment, hashes[at : at + length])
            tail = self._carve(segment, first, length, lanes)
            self._apply(tail, change)
            touched.append(tail)
            at += length
        rest, tail = total - at, touched[-1] if touched else NO_SEGMENT
        if rest > _FEW_BLOCKS:
            touched += self._place_each(hashes[at:], tail, change)
        elif rest:
            touched += self._place_few(keys[at:].tolist(), tail, change)
        self._chains.touch(touched)

    def alter(self, hashes: Hashes, change: Change) -> int:
        """Applies a change to those blocks of a chain run that are known; returns how many are.

        Blocks that nobody holds any more leave at once.
        """
        keys = hashes.data
        total, at = len(keys), 0
        while at < total:
            found = self._chains.jump(keys, at, total)
            if found is None or not found[2]:
                return at + self._alter_each(hashes[at:], change)
            segment, first, length = found
            part = hashes[at : at + length]
            own = self._carve(segment, first, length, self._lanes_of_part(segment, part))
            self._apply(own, change)
            if self._fields.holders[own] == EMPTY:
                self._drop_run(own, part)
            at += length
        return total

    def _drop_run(self, segment: int, hashes: Hashes) -> None:
        if len(hashes) > _FEW_BLOCKS:
            self._drop(segment, self._table.find(hashes))
            return
        for key in hashes.tolist():
            lane = self._table.find_one(key)
            assert lane is not None
            self._table.release_one(lane)
            self._chains.thin(segment, 1)

    def _alter_each(self, hashes: Hashes, change: Change) -> int:
        """As `alter`, block by block and in any order."""
        lanes = self._table.find(hashes)
        lanes = lanes[lanes >= 0]
        places = self._table.places[lanes]
        order = places.argsort()
        lanes, places = lanes[order], places[order]
        doubles = (places[1:] == places[:-1]).nonzero()[0]
        if doubles.size:
            lanes, places = np.delete(lanes, doubles), np.delete(places, doubles)
        for start, stop in runs_of(places):
            piece, first = lanes[start:stop], int(places[start])
            own = self._carve(first >> OFFSET_BITS, first & OFFSET_MASK, stop - start, piece)
            self._apply(own, change)
            if self._fields.holders[own] == EMPTY:
                self._drop(own, piece)
        return int(lanes.size)

    def _apply(self, segment: int, change: Change) -> None:
        self._chains.set_holders(segment, change(self._fields.holders[segment]))

    def _lanes_of_part(self, segment: int, hashes: Hashes) -> Lanes | None:
        """The lanes of these blocks, unless they are all of the segment."""
        whole = len(hashes) == self._fields.count[segment]
        return None if whole else self._table.find(hashes)

    def _carve(self, segment: int, first: int, count: int, lanes: Lanes | None) -> int:
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

    def _place_few(self, keys: list[int], tail: int, change: Change) -> list[int]:
        """As `_place_each`, cheaper for few blocks."""
        placed: list[int] = []
        for key in keys:
            lane = self._table.find_one(key)
            if lane is not None:
                tail = self._alter_lane(lane, change)
            elif (lane := self._table.insert_one(key)) is not None:
                place = self._grow(1, tail, change)
                self._table.place_view[lane] = place
                tail = place >> OFFSET_BITS
            else:
                tail = NO_SEGMENT
                continue
            if not placed or placed[-1] != tail:
                placed.append(tail)
        return placed

    def _place_each(self, hashes: Hashes, tail: int, change: Change) -> list[int]:
        """As `place`, block by block; returns the segments in the order of the run."""
        refused = self._table.refused
        lanes, fresh = self._table.find_or_insert(hashes)
        if fresh.size == lanes.size and self._table.refused == refused:
            return [self._append(lanes, tail, change)]
        ordered = np.sort(lanes)
        if ordered[0] < 0 or (ordered[1:] == ordered[:-1]).any():
            return self._place_loose(lanes, fresh, change)
        places = self._table.places[lanes]
        places[fresh] = fresh  # As if in `NO_SEGMENT`, at offsets that follow one another.
        placed = []
        for start, stop in runs_of(places):
            piece, first = lanes[start:stop], int(places[start])
            segment = first >> OFFSET_BITS
            if segment == NO_SEGMENT:
                tail = self._append(piece, tail, change)
            else:
                own = self._carve(segment, first & OFFSET_MASK, stop - start, piece)
                self._apply(own, change)
                tail = self._joined(tail, own, piece)
            placed.append(tail)
        return placed

    def _append(self, lanes: Lanes, tail: int, change: Change) -> int:
        """Gives inserted blocks a segment; should some be given twice, one that has holes."""
        count = lanes.size
        first = self._grow(count, tail, change)
        segment, places = first >> OFFSET_BITS, np.arange(first, first + count)
        self._table.places[lanes] = places
        surplus = int(np.count_nonzero(self._table.places[lanes] != places))
        if surplus:
            self._chains.thin(segment, surplus)
            self._table.discount(surplus)
        return segment

    def _grow(self, count: int, tail: int, change: Change) -> int:
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

    def _write_places(self, lanes: Lanes | None, segment: int, first: int) -> None:
        if lanes is not None:
            place = (segment << OFFSET_BITS) + first
            self._table.places[lanes] = np.arange(place, place + lanes.size)

    def _may_extend(self, tail: int, holders: int, count: int) -> bool:
        return (
            tail != NO_SEGMENT
            and holders != EMPTY
            and self._fields.holders[tail] == holders
            and self._fields.count[tail] + count <= MAX_SEGMENT_BLOCKS
            and bool(self._fields.is_whole[tail])
        )

    def _joined(self, tail: int, segment: int, lanes: Lanes) -> int:
        """Merges a segment, all of whose lanes are given, into the one before it if they agree."""
        if not self._may_extend(tail, self._fields.holders[segment], lanes.size):
            return segment
        self._write_places(lanes, tail, self._fields.last[tail] + 1)
        self._fields.extend(tail, lanes.size)
        self._fields.thin(segment, lanes.size)
        return tail

    def _place_loose(self, lanes: Lanes, fresh: Lanes, change: Change) -> list[int]:
        """As `_place_each` for what is no chain: blocks given twice, or refused by a full table.

        Every block becomes a segment of its own, so that nothing is concluded from its neighbours.
        """
        inserted = [lane for lane in lanes[fresh].tolist() if lane >= 0]
        unplaced = set(inserted)
        self._table.discount(len(inserted) - len(unplaced))
        placed = []
        for lane in np.unique(lanes[lanes >= 0]).tolist():
            if lane in unplaced:
                place = self._grow(1, NO_SEGMENT, change)
                self._table.place_view[lane] = place
                placed.append(place >> OFFSET_BITS)
            else:
                placed.append(self._alter_lane(lane, change))
        return placed

    def _alter_lane(self, lane: int, change: Change) -> int:
        """Applies a change to one block; returns the segment that has it and no other."""
        place = self._table.place_view[lane]
        own = self._carve(place >> OFFSET_BITS, place & OFFSET_MASK, 1, np.array([lane]))
        self._apply(own, change)
        return own

    def _drop(self, segment: int, lanes: Lanes) -> None:
        self._table.release(lanes)
        self._chains.thin(segment, lanes.size)
