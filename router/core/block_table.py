"""Where each known block hash lives: a fixed-size hash table over numpy arrays.

Keys sit in buckets of eight, one cache line each; the few that do not fit their bucket go to a
small overflow area behind the buckets. Nothing is rehashed or grown after construction. A *lane* is
a position in the table, its *place* a chain segment and an offset in it, packed into one number.
"""

import struct

import numpy as np
from numpy.typing import NDArray

Hashes = NDArray[np.uint64]
Lanes = NDArray[np.int64]
Places = NDArray[np.int64]

ABSENT = -1
"""Stands in lane arrays for a hash that the table does not hold."""

BUCKET_LANES = 8
OFFSET_BITS = 32
OFFSET_MASK = (1 << OFFSET_BITS) - 1

_ROW = struct.Struct(f"={BUCKET_LANES}Q")

# Numbers as arrays without dimensions: numpy takes half as long as for Python's own.
_ZERO, _ONE = np.array(0, np.uint64), np.array(1, np.uint64)
_LANE_BITS, _LANE_MASK = np.array(3), np.array(BUCKET_LANES - 1)
_BYTE_BITS, _FULL = np.array(3, np.uint8), np.array(BUCKET_LANES, np.uint8)


class BlockTable:
    """Maps unsigned 64-bit hashes to lanes; `places[lane]` is `segment << 32 | offset`.

    Half of the lanes stay empty at `max_blocks` keys, so that only about one key in a hundred
    overflows. Callers keep the number of keys near `max_blocks`; the table itself refuses a key
    only when the overflow area is full.
    """

    def __init__(self, max_blocks: int) -> None:
        buckets = max(4, 1 << (2 * max_blocks // BUCKET_LANES - 1).bit_length())
        self._bucket_lanes = buckets * BUCKET_LANES
        self.total_lanes = self._bucket_lanes + max(64, max_blocks // 8)
        self._mask = buckets - 1
        self._mask_array = np.array(self._mask, np.uint64)
        # An empty lane holds 0. Bucket 0, where 0 would be a legal key, is filled with 1, a key of
        # bucket 1: it looks full to all, and its keys live in the overflow area.
        # One lane more, at the place -1, swallows what is written for refused keys.
        self._keys = np.zeros(self.total_lanes + 1, np.uint64)
        self._keys[:BUCKET_LANES] = 1
        self._rows = self._keys[: self._bucket_lanes].reshape(buckets, BUCKET_LANES)
        self._key_view = self._keys.data
        self._key_bytes = self._key_view.cast("B")
        self._overflow: dict[int, int] = {}
        self._overflow_end = self._bucket_lanes
        self._overflow_free: list[int] = []
        self._overflowed = np.zeros(buckets, np.uint16)
        self.places = np.zeros(self.total_lanes + 1, np.int64)
        self.place_view = self.places.data
        self.occupied = 0
        self.refused = 0

    def find_one(self, key: int) -> int | None:
        """The lane of one hash; the cheap way when few hashes are asked for."""
        base = (key & self._mask) << 3
        row = _ROW.unpack_from(self._key_bytes, base << 3)
        if key in row:
            return base + row.index(key)
        return self._overflow.get(key) if self._overflow else None

    def find(self, keys: Hashes) -> Lanes:
        """The lane of every hash, `ABSENT` where there is none. O(len(keys)) in a few passes."""
        buckets = (keys & self._mask_array).view(np.int64)
        lanes = self._match(keys, buckets, self._rows.take(buckets, axis=0))
        return _absent(keys.size) if lanes is None else lanes

    def insert_one(self, key: int) -> int | None:
        """The lane of a hash that is not there yet; none where a full table refuses it."""
        base = (key & self._mask) << 3
        row = _ROW.unpack_from(self._key_bytes, base << 3)
        lane = base + row.index(0) if 0 in row else self._take_overflow(key)
        if lane is not None:
            self._key_view[lane] = key
            self.occupied += 1
        return lane

    def find_or_insert(self, keys: Hashes) -> tuple[Lanes, NDArray[np.int64]]:
        """The lane of every hash, and the positions of those that were not there.

        `ABSENT` where a full table refused one. Equal hashes share a lane; where fresh ones do,
        `occupied` has counted each, and the caller takes the surplus off with `discount`.
        """
        buckets = (keys & self._mask_array).view(np.int64)
        rows = self._rows.take(buckets, axis=0)
        lanes = self._match(keys, buckets, rows)
        if lanes is None:
            return self._take_lanes(keys, buckets, rows), np.arange(keys.size)
        fresh = (lanes < 0).nonzero()[0]
        if fresh.size:
            lanes[fresh] = self._take_lanes(keys[fresh], buckets[fresh], rows[fresh])
        return lanes, fresh

    def discount(self, surplus: int) -> None:
        """Takes off `occupied` what was counted twice."""
        self.occupied -= surplus

    def release_one(self, lane: int) -> None:
        """Empties an occupied lane."""
        if lane >= self._bucket_lanes:
            self.release(np.array([lane]))
            return
        self._key_view[lane] = 0
        self.occupied -= 1

    def release(self, lanes: Lanes) -> None:
        """Empties distinct occupied lanes."""
        self.occupied -= lanes.size
        if self._overflow:
            self._release_overflow(lanes[lanes >= self._bucket_lanes])
        self._keys[lanes] = 0

    def window(self, start: int, lanes: int) -> Lanes:
        """The occupied ones among `lanes` lanes from `start` on."""
        stop, first = start + lanes, max(start, BUCKET_LANES)
        taken = self._keys[first : min(stop, self._bucket_lanes)].nonzero()[0] + first
        overflow = [lane for lane in self._overflow.values() if start <= lane < stop]
        return np.concatenate((taken, np.array(overflow, np.int64)))

    def keys_at(self, lanes: Lanes) -> Hashes:
        return self._keys[lanes]

    def _match(self, keys: Hashes, buckets: Lanes, rows: NDArray[np.uint64]) -> Lanes | None:
        """The lane of every hash, `ABSENT` where there is none; None where none of them has one."""
        hits = (rows == keys[:, np.newaxis]).ravel().nonzero()[0]
        if hits.size == keys.size:
            lanes: Lanes = (buckets << _LANE_BITS) + (hits & _LANE_MASK)
            return lanes
        suspects = self._overflowed.take(buckets).nonzero()[0]
        if not hits.size and not suspects.size:
            return None
        some = _absent(keys.size)
        matched = hits >> _LANE_BITS
        some[matched] = (buckets[matched] << _LANE_BITS) + (hits & _LANE_MASK)
        for at, key in zip(suspects.tolist(), keys[suspects].tolist(), strict=True):
            if key in self._overflow:
                some[at] = self._overflow[key]
        return some

    def _take_lanes(self, keys: Hashes, buckets: Lanes, rows: NDArray[np.uint64]) -> Lanes:
        """Several keys may want one lane: all write, those who read themselves back have won."""
        free = _first_free(rows)
        wanted: Lanes = (buckets << _LANE_BITS) + free
        is_full = free == _FULL
        if np.count_nonzero(is_full):
            self._take_overflow_lanes(keys, is_full.nonzero()[0], wanted)
        self._keys[wanted] = keys
        self.occupied += keys.size
        lost = (self._keys[wanted] != keys).nonzero()[0]
        if lost.size and (lost := lost[wanted[lost] >= 0]).size:
            self.occupied -= lost.size
            again, losers = buckets[lost], keys[lost]
            wanted[lost] = self._take_lanes(losers, again, self._rows.take(again, axis=0))
        return wanted

    def _take_overflow_lanes(self, keys: Hashes, full: NDArray[np.int64], wanted: Lanes) -> None:
        for at in full.tolist():
            lane = self._take_overflow(int(keys[at]))
            if lane is None:
                self.occupied -= 1
            wanted[at] = ABSENT if lane is None else lane

    def _take_overflow(self, key: int) -> int | None:
        lane = self._overflow.get(key)
        if lane is not None:
            return lane
        if self._overflow_free:
            lane = self._overflow_free.pop()
        elif self._overflow_end < self.total_lanes:
            lane, self._overflow_end = self._overflow_end, self._overflow_end + 1
        else:
            self.refused += 1
            return None
        self._overflow[key] = lane
        self._overflowed[key & self._mask] += 1
        return lane

    def _release_overflow(self, lanes: Lanes) -> None:
        for lane, key in zip(lanes.tolist(), self._keys[lanes].tolist(), strict=True):
            del self._overflow[key]
            self._overflow_free.append(lane)
            self._overflowed[key & self._mask] -= 1

    def check_integrity(self) -> None:
        """Asserts that every occupied lane is found under its own key. O(lanes)."""
        lanes = self.window(0, self.total_lanes)
        assert lanes.size == self.occupied
        assert np.array_equal(self.find(self._keys[lanes]), lanes)
        assert int(self._overflowed.sum()) == len(self._overflow)


def _absent(count: int) -> Lanes:
    lanes: Lanes = np.full(count, ABSENT, np.int64)
    return lanes


def _first_free(rows: NDArray[np.uint64]) -> NDArray[np.uint8]:
    """Per row the first empty lane, `BUCKET_LANES` where it is full.

    Eight booleans are read as one integer, of which the lowest set bit and all below are counted.
    """
    empty = (rows == _ZERO).view(np.uint64).ravel()
    lanes: NDArray[np.uint8] = np.bitwise_count(empty ^ (empty - _ONE)) >> _BYTE_BITS
    return lanes
