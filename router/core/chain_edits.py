"""Changes to chains: the blocks of a run enter, change their holders or leave.

A change is a pure function from a segment's holder set to its next one; this module finds the
segments that it concerns, `segment_edits` splits those that it concerns in part.
"""

import numpy as np

from router.core.block_table import OFFSET_BITS, OFFSET_MASK, Hashes, Lanes
from router.core.chain_map import ChainMap, runs_of
from router.core.segment_edits import Change, SegmentEditor
from router.core.segments import NO_SEGMENT
from router.core.set_contents import EMPTY

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
        self._segments = SegmentEditor(chains)

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
            tail = self._segments.carve(segment, first, length, lanes)
            self._segments.alter(tail, change)
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
            own = self._segments.carve(segment, first, length, self._lanes_of_part(segment, part))
            self._segments.alter(own, change)
            if self._fields.holders[own] == EMPTY:
                self._drop_run(own, part)
            at += length
        return total

    def _drop_run(self, segment: int, hashes: Hashes) -> None:
        if len(hashes) > _FEW_BLOCKS:
            self._segments.drop(segment, self._table.find(hashes))
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
            own = self._segments.carve(
                first >> OFFSET_BITS, first & OFFSET_MASK, stop - start, piece
            )
            self._segments.alter(own, change)
            if self._fields.holders[own] == EMPTY:
                self._segments.drop(own, piece)
        return int(lanes.size)

    def _lanes_of_part(self, segment: int, hashes: Hashes) -> Lanes | None:
        """The lanes of these blocks, unless they are all of the segment."""
        whole = len(hashes) == self._fields.count[segment]
        return None if whole else self._table.find(hashes)

    def _place_few(self, keys: list[int], tail: int, change: Change) -> list[int]:
        """As `_place_each`, cheaper for few blocks."""
        placed: list[int] = []
        for key in keys:
            lane = self._table.find_one(key)
            if lane is not None:
                tail = self._segments.alter_block(lane, change)
            elif (lane := self._table.insert_one(key)) is not None:
                place = self._segments.grow(1, tail, change)
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
            return [self._segments.append(lanes, tail, change)]
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
                tail = self._segments.append(piece, tail, change)
            else:
                own = self._segments.carve(segment, first & OFFSET_MASK, stop - start, piece)
                self._segments.alter(own, change)
                tail = self._segments.join(tail, own, piece)
            placed.append(tail)
        return placed

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
                place = self._segments.grow(1, NO_SEGMENT, change)
                self._table.place_view[lane] = place
                placed.append(place >> OFFSET_BITS)
            else:
                placed.append(self._segments.alter_block(lane, change))
        return placed
