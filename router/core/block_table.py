"""Where each known block hash lives: a fixed-size hash table over numpy arrays.

Keys sit in buckets of eight, one cache line each; the few that do not fit their bucket go to a
small overflow area behind the buckets. Nothing is rehashed or grown after construction. A *lane* is
a position in the table; what a lane means (its chain segment and offset) is the owner's business.
"""

import numpy as np
from numpy.typing import NDArray

Hashes = NDArray[np.uint64]
Lanes = NDArray[np.int64]

BUCKET_LANES = 8
ABSENT = -1
"""Stands in lane arrays for a hash that the table does not hold."""

_ALL_BITS = np.uint64(0xFFFFFFFFFFFFFFFF)


class BlockTable:
    """Maps unsigned 64-bit hashes to lanes; every lane carries a `segment` and an `offset`.

    Half of the lanes stay empty at `max_blocks` keys, so that only about one key in a hundred
    overflows. Callers keep the number of keys near `max_blocks`; the table itself refuses only when
    the overflow area is full.
    """

    def __init__(self, max_blocks: int) -> None:
        buckets = max(4, 1 << (2 * max_blocks // BUCKET_LANES - 1).bit_length())
        self._lanes = buckets * BUCKET_LANES
        overflow_lanes = max(64, max_blocks // 8)
        self.total_lanes = self._lanes + overflow_lanes
        self._mask = buckets - 1
        self._mask_u64 = np.uint64(self._mask)
        self._keys = np.zeros(self.total_lanes, np.uint64)
        # An empty lane holds 0, except in bucket 0, where 0 is a legal key: there it holds 1, which
        # belongs to bucket 1. So every 64-bit value is a legal key and fresh pages stay untouched.
        self._keys[:BUCKET_LANES] = 1
        self._rows = self._keys[: self._lanes].reshape(buckets, BUCKET_LANES)
        self._key_view = self._keys.data
        self._overflow: dict[int, int] = {}
        self._overflow_free = list(range(self.total_lanes - 1, self._lanes - 1, -1))
        self._overflowed = np.zeros(buckets, np.uint16)
        self.segment = np.zeros(self.total_lanes, np.int32)
        self.offset = np.zeros(self.total_lanes, np.int32)
        self.occupied = 0
        self.refused = 0
        self.segment_view = self.segment.data
        self.offset_view = self.offset.data

    def find_one(self, key: int) -> int | None:
        """The lane of one hash; the cheap way when few hashes are asked for."""
        base = (key & self._mask) << 3
        row = self._key_view[base : base + BUCKET_LANES].tolist()
        if key in row:
            return base + row.index(key)
        return self._overflow.get(key) if self._overflow else None

    def find(self, keys: Hashes) -> Lanes:
        """The lane of every hash, `ABSENT` where there is none. O(len(keys)) in a few passes."""
        buckets = (keys & self._mask_u64).view(np.int64)
        return self._match(keys, buckets, self._rows.take(buckets, axis=0))

    def find_or_insert(self, keys: Hashes) -> tuple[Lanes, NDArray[np.int64] | None]:
        """The lane of every hash, and which positions were inserted (None: none was).

        Equal hashes share one lane. A hash for which no lane is left stays `ABSENT`.
        """
        buckets = (keys & self._mask_u64).view(np.int64)
        rows = self._rows.take(buckets, axis=0)
        lanes = self._match(keys, buckets, rows)
        missing = np.flatnonzero(lanes < 0)
        if not missing.size:
            return lanes, None
        if missing.size < keys.size:
            keys, buckets, rows = keys[missing], buckets[missing], rows[missing]
        lanes[missing] = self._insert(keys, buckets, rows)
        return lanes, missing

    def release(self, lanes: Lanes) -> None:
        """Empties distinct occupied lanes."""
        self.occupied -= lanes.size
        if self._overflow:
            self._release_overflow(lanes[lanes >= self._lanes])
        self._keys[lanes] = lanes < BUCKET_LANES

    def window(self, start: int, lanes: int) -> Lanes:
        """The occupied ones among `lanes` lanes from `start` on."""
        stop = start + lanes
        taken = self._keys[start : min(stop, self._lanes)] != 0
        if start < BUCKET_LANES:
            taken[: BUCKET_LANES - start] = self._keys[start : min(BUCKET_LANES, stop)] != 1
        overflow = [lane for lane in self._overflow.values() if start <= lane < stop]
        return np.concatenate((np.flatnonzero(taken) + start, np.array(overflow, np.int64)))

    def keys_at(self, lanes: Lanes) -> Hashes:
        return self._keys[lanes]

    def _match(self, keys: Hashes, buckets: Lanes, rows: NDArray[np.uint64]) -> Lanes:
        hits = np.flatnonzero(rows == keys[:, None])
        if hits.size == keys.size:
            return (buckets << 3) + (hits & 7)
        lanes = np.full(keys.size, ABSENT, np.int64)
        owners = hits >> 3
        lanes[owners] = (buckets[owners] << 3) + (hits & 7)
        if self._overflow:
            self._match_overflow(keys, buckets, lanes)
        return lanes

    def _match_overflow(self, keys: Hashes, buckets: Lanes, lanes: Lanes) -> None:
        suspects = np.flatnonzero((lanes < 0) & (self._overflowed[buckets] > 0))
        for at, key in zip(suspects.tolist(), keys[suspects].tolist(), strict=True):
            lanes[at] = self._overflow.get(key, ABSENT)

    def _insert(self, keys: Hashes, buckets: Lanes, rows: NDArray[np.uint64]) -> Lanes:
        """Several keys may want one lane: all write, those who read themselves back have won."""
        lanes = np.full(keys.size, ABSENT, np.int64)
        pending = np.arange(keys.size)
        while True:
            free = _first_free(rows, buckets)
            fits = free < BUCKET_LANES
            wanted = (buckets << 3) + free
            if not fits.all():
                self._insert_overflow(keys, pending[~fits], lanes)
                wanted, pending = wanted[fits], pending[fits]
            wanting = keys[pending]
            self._keys[wanted] = wanting
            won = self._keys[wanted] == wanting
            if won.all():
                lanes[pending] = wanted
                self.occupied += self._distinct(wanted)
                return lanes
            lanes[pending[won]] = wanted[won]
            self.occupied += self._distinct(wanted[won])
            pending = pending[~won]
            buckets = (keys[pending] & self._mask_u64).view(np.int64)
            rows = self._rows.take(buckets, axis=0)

    def _distinct(self, lanes: Lanes) -> int:
        """How many lanes differ; uses their offsets, which fresh lanes have no need of yet."""
        places = np.arange(lanes.size, dtype=np.int32)
        self.offset[lanes] = places
        return int(np.count_nonzero(self.offset[lanes] == places))

    def _insert_overflow(self, keys: Hashes, places: Lanes, lanes: Lanes) -> None:
        for at in places.tolist():
            key = int(keys[at])
            lane = self._overflow.get(key)
            if lane is None and self._overflow_free:
                lane = self._overflow[key] = self._overflow_free.pop()
                self._keys[lane] = key
                self._overflowed[key & self._mask] += 1
                self.occupied += 1
            if lane is None:
                self.refused += 1
            else:
                lanes[at] = lane

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


def _first_free(rows: NDArray[np.uint64], buckets: Lanes) -> Lanes:
    """Per row the first empty lane, `BUCKET_LANES` where it is full.

    Eight booleans are read as one integer whose trailing zero bits are counted.
    """
    empty_value = (buckets == 0).astype(np.uint64)
    empty = (rows == empty_value[:, None]).view(np.uint64).ravel()
    trailing_zeros = np.bitwise_count(~empty & (empty - np.uint64(1)))
    lanes: Lanes = (trailing_zeros >> 3).astype(np.int64)
    return lanes
