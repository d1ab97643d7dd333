"""From block hashes to who holds them, kept as chain segments in a block table.

Hashes must be chained as `router.core.hashing` chains them: equal hashes mean equal prefixes. This
module reads and keeps the counts; `chain_edits` changes, `room` makes room.
"""

import numpy as np
from numpy.typing import NDArray

from router.core.block_table import OFFSET_BITS, OFFSET_MASK, BlockTable, Hashes, Places
from router.core.holder_sets import HolderSets
from router.core.segments import NO_SEGMENT, SegmentTable
from router.core.set_contents import EMPTY

Piece = tuple[int, int]
"""(blocks, segment): so many consecutive blocks of a prompt lie in this segment."""

_MAX_JUMPS = 8


class ChainMap:
    """Segments with their holders over the blocks of `table`.

    A segment that nobody holds is dead: its blocks count as unknown until their lanes are reused or
    taken back.
    """

    def __init__(self, max_blocks: int, sets: HolderSets) -> None:
        self.table = BlockTable(max_blocks)
        self.segments = SegmentTable(self.table.total_lanes)
        self.sets = sets
        self._find = self.table.find_one
        self._places = self.table.place_view
        self._tick = 0

    @property
    def dead_blocks(self) -> int:
        """Blocks in the table that nobody holds."""
        return self.sets.blocks_in(EMPTY)

    @property
    def live_blocks(self) -> int:
        return self.table.occupied - self.dead_blocks

    def walk(self, hashes: Hashes) -> list[Piece]:
        """The leading known blocks of a prompt as pieces. O(segments · log blocks).

        Makes them the most recently used, the first block most of all, so that a chain is evicted
        from its end.
        """
        keys, holders, stamps = hashes.data, self.segments.holders, self.segments.stamp
        total, at = len(keys), 0
        pieces: list[Piece] = []
        self._tick = tick = self._tick + _MAX_JUMPS
        while at < total:
            found = self.jump(keys, at, total)
            if found is None:
                break
            segment, _, length = found
            if not length or len(pieces) == _MAX_JUMPS:
                scanned = self._scan(hashes[at:])
                self.touch([segment for _, segment in pieces + scanned])
                return pieces + scanned
            if holders[segment] == EMPTY:
                break
            stamps[segment] = tick - len(pieces)
            pieces.append((length, segment))
            at += length
        return pieces

    def touch(self, segments: list[int]) -> None:
        """Makes a chain's segments the most recently used, the first most of all."""
        stamp = self.segments.stamp
        self._tick = tick = self._tick + len(segments)
        for segment in segments:
            stamp[segment] = tick
            tick -= 1

    def set_holders(self, segment: int, holders: int) -> None:
        """Gives all blocks of a segment their holder set."""
        before = self.segments.holders[segment]
        if holders == before:
            return
        count = self.segments.count[segment]
        self.sets.count(before, -count)
        self.sets.count(holders, count)
        self.segments.holders[segment] = holders

    def empty_holders(self, emptied: list[int]) -> None:
        """Moves the blocks of sets that have lost all holders to the empty set. O(segments)."""
        if not emptied:
            return
        is_emptied = np.zeros(len(self.sets.blocks), bool)
        is_emptied[emptied] = True
        holders = self.segments.holders_array[: self.segments.end]
        hit = is_emptied[holders] & (self.segments.count_array[: self.segments.end] > 0)
        for segment in hit.nonzero()[0].tolist():
            self.set_holders(segment, EMPTY)
        self.sets.free(emptied)

    def thin(self, segment: int, count: int) -> None:
        """Notes that so many blocks of a segment have left it, from anywhere."""
        self.sets.count(self.segments.holders[segment], -count)
        self.segments.thin(segment, count)

    def jump(self, keys: memoryview, at: int, total: int) -> tuple[int, int, int] | None:
        """Segment, first offset and length of the piece that starts at a place of a prompt.

        None where the block is unknown; length 0 where the segment has holes, so that nothing can
        be said about more than one block without reading each.
        """
        lane = self._find(keys[at])
        if lane is None:
            return None
        place = self._places[lane]
        segment, offset = place >> OFFSET_BITS, place & OFFSET_MASK
        reach = self.segments.last[segment] - offset + 1
        if reach > total - at:
            reach = total - at
        if reach == 1:
            return segment, offset, 1
        if not self.segments.is_whole[segment]:
            return segment, offset, 0
        lane = self._find(keys[at + reach - 1])
        if lane is None or self._places[lane] != place + reach - 1:
            reach = self._agreeing(keys, at, place, reach - 1)
        return segment, offset, reach

    def _agreeing(self, keys: memoryview, at: int, place: int, most: int) -> int:
        """How many blocks of a prompt follow one another from a place on, at least 1.

        Two blocks that lie as far apart in the segment as in the prompt prove all between them.
        """
        find, places = self._find, self._places
        low, high = 1, most
        while low < high:
            middle = (low + high + 1) >> 1
            lane = find(keys[at + middle - 1])
            if lane is not None and places[lane] == place + middle - 1:
                low = middle
            else:
                high = middle - 1
        return low

    def segment_ending_with(self, block_hash: int) -> int:
        """The segment whose last block this is, `NO_SEGMENT` where it ends none."""
        lane = self.table.find_one(block_hash)
        if lane is None:
            return NO_SEGMENT
        place = self.table.place_view[lane]
        segment = place >> OFFSET_BITS
        return segment if self.segments.last[segment] == place & OFFSET_MASK else NO_SEGMENT

    def _scan(self, hashes: Hashes) -> list[Piece]:
        """As `walk`, reading every block."""
        lanes = self.table.find(hashes)
        unknown = (lanes < 0).nonzero()[0]
        segments = self.table.places[lanes[: unknown[0]] if unknown.size else lanes] >> OFFSET_BITS
        dead = (self.segments.holders_array[segments] == EMPTY).nonzero()[0]
        segments = segments[: dead[0]] if dead.size else segments
        runs = runs_between(segments[1:] != segments[:-1], segments.size)
        return [(stop - start, int(segments[start])) for start, stop in runs]

    def check_integrity(self) -> None:
        """Asserts that segments and sets agree with the table. O(lanes)."""
        self.table.check_integrity()
        self.sets.check_integrity()
        fields, table = self.segments, self.table
        lanes = table.window(0, table.total_lanes)
        places = table.places[lanes]
        numbers, offsets = places >> OFFSET_BITS, places & OFFSET_MASK
        assert np.unique(places).size == lanes.size
        counts = np.bincount(numbers, minlength=fields.end)
        assert np.array_equal(counts, fields.count_array[: fields.end])
        for number, offset in zip(numbers.tolist(), offsets.tolist(), strict=True):
            assert fields.first[number] <= offset <= fields.last[number]
        carried = np.bincount(fields.holders_array[numbers], minlength=len(self.sets.blocks))
        assert np.array_equal(carried, self.sets.blocks)


def runs_of(places: Places) -> list[tuple[int, int]]:
    """Start and stop of each run of places that follow one another in one segment."""
    return runs_between(places[1:] != places[:-1] + 1, places.size)


def runs_between(breaks: NDArray[np.bool_], size: int) -> list[tuple[int, int]]:
    """Start and stop of each run of `size` elements, given between which neighbours one ends."""
    if not size:
        return []
    stops = (breaks.nonzero()[0] + 1).tolist()
    return list(zip([0, *stops], [*stops, size], strict=True))
