"""Interned sets of holders: which replica columns hold a block, and on which tiers.

Thousands of blocks share one set, so a block carries a set's number and a replica that goes away is
one bit to clear in each set, whatever the number of blocks.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from router.core.types import Slot, Tier

EMPTY = 0
"""The number of the set without holders."""

Indicator = NDArray[np.int32]

_TIERS = len(Tier)
_U64 = (1 << 64) - 1
_MAX_CACHED_MOVES = 16_384
_MAX_CACHED_STANDINGS = 1_024
_COLLECTED_AT_ONCE = 4_096


class HolderSets:
    """At most `max_sets` sets over `columns` columns, each a bit matrix [tier, column].

    The first `replicas` columns are the replicas' slots; the rest serve snapshots being loaded.

    `version` changes whenever a number comes to mean another set.
    `blocks[number]` counts the blocks that carry a set; the caller keeps it true through `count`.
    Sets that no block carries are reused when numbers run out. Where none can be, `added` returns
    `EMPTY`'s or the unchanged set and `exhausted` counts it: a lost hint, never a wrong one.
    """

    def __init__(self, max_sets: int, columns: int, replicas: int) -> None:
        self._replicas = replicas
        self.words = (columns + 63) // 64
        self.rows = np.zeros((max_sets, _TIERS, self.words), np.uint64)
        self.blocks = np.zeros(max_sets, np.int64)
        self.has_lower_tiers = False
        self.exhausted = 0
        self.version = 0
        self._max_sets = max_sets
        self._row_view = self.rows.reshape(-1).data
        self._block_view = self.blocks.data
        self._digests = np.zeros(max_sets, np.uint64)
        self._digest_view = self._digests.data
        # A set's digest is linear in its bits (random odd weights per word, modulo 2^64), so that
        # one more or one less holder costs one addition. Equal digests are compared in full.
        rng = np.random.default_rng(0x9E3779B9)
        shape = (_TIERS, self.words)
        self._weights = rng.integers(0, 1 << 63, shape, np.uint64) * np.uint64(2) + np.uint64(1)
        self._interned: dict[int, int] = {0: EMPTY}
        self._moves: dict[tuple[int, int, int, bool], int] = {}
        self._standing: dict[tuple[int, ...], list[Indicator]] = {}
        self._free: list[int] = []
        self._next = 1
        self._collect_from = 1

    def __len__(self) -> int:
        return self._next - len(self._free)

    def added(self, number: int, column: int, tier: Tier) -> int:
        """The set with one more holder."""
        return self._moved(number, column, tier, True)

    def removed(self, number: int, column: int, tier: Tier) -> int:
        """The set with one holder less."""
        return self._moved(number, column, tier, False)

    def holds(self, number: int, column: int, tier: Tier) -> bool:
        word = self._row_view[(number * _TIERS + tier) * self.words + (column >> 6)]
        return bool(word >> (column & 63) & 1)

    def count(self, number: int, blocks: int) -> None:
        """Notes that `blocks` more blocks carry the set (fewer, where negative)."""
        self._block_view[number] += blocks

    def blocks_in(self, number: int) -> int:
        """How many blocks carry the set."""
        return self._block_view[number]

    def standing(self, numbers: tuple[int, ...]) -> list[Indicator]:
        """Who holds the first set's blocks, who the first two sets' both, and so on.

        Shape [tiers, replicas] each, 1 where the slot does at that tier or a faster one. The
        arrays are shared: not to be written.
        """
        cached = self._standing.get(numbers)
        if cached is None:
            if len(self._standing) >= _MAX_CACHED_STANDINGS:
                self._standing.clear()
            nested = np.bitwise_or.accumulate(self.rows[list(numbers)], axis=1)
            alive = unpack(np.bitwise_and.accumulate(nested, axis=0))
            cached = list(alive[:, :, : self._replicas].astype(np.int32))
            self._standing[numbers] = cached
        return cached

    def blocks_of(self, column: int, tier: Tier) -> int:
        """How many blocks the column holds on that tier. O(sets)."""
        numbers = self._holding(column, [tier])
        return int(self.blocks[numbers].sum())

    def numbers_of(self, column: int) -> NDArray[np.int64]:
        """The sets with the column on any tier. O(sets)."""
        return self._holding(column, list(Tier))

    def columns_of(self, number: int) -> list[int]:
        """The columns that hold on any tier."""
        held = unpack(np.bitwise_or.reduce(self.rows[number], axis=0))
        return [int(column) for column in np.flatnonzero(held)]

    def clear_column(self, column: int, tiers: Sequence[Tier]) -> list[int]:
        """Removes the column from every set on these tiers. O(sets).

        Returns the sets without a holder left: their blocks are to be moved, then they are freed.
        """
        numbers = self._holding(column, tiers)
        keep = np.uint64(~(1 << (column & 63)) & _U64)
        rows = self.rows[numbers]
        rows[:, list(tiers), column >> 6] &= keep
        return self._rewrite(numbers, rows)

    def move_column(self, source: int, target: Slot) -> list[int]:
        """Makes the target column hold what the source holds, and empties the source. O(sets).

        Returns the sets that have no holder left, as `clear_column` does.
        """
        numbers = np.union1d(self.numbers_of(source), self.numbers_of(target))
        rows = self.rows[numbers]
        moved = rows[:, :, source >> 6] >> np.uint64(source & 63) & np.uint64(1)
        for column in (source, target):
            rows[:, :, column >> 6] &= np.uint64(~(1 << (column & 63)) & _U64)
        rows[:, :, target >> 6] |= moved << np.uint64(target & 63)
        return self._rewrite(numbers, rows)

    def free(self, numbers: Sequence[int]) -> None:
        """Gives back sets that have neither holders nor blocks."""
        self._free.extend(numbers)

    def _moved(self, number: int, column: int, tier: Tier, adds: bool) -> int:
        move = (number, column, int(tier), adds)
        target = self._moves.get(move)
        if target is not None:
            return target
        target = number
        if self.holds(number, column, tier) is not adds:
            target = self._intern_flipped(number, column, tier, adds)
        if target is None:
            self.exhausted += 1
            return number if adds else EMPTY
        if len(self._moves) >= _MAX_CACHED_MOVES:
            self._moves.clear()
        self._moves[move] = target
        return target

    def _intern_flipped(self, number: int, column: int, tier: Tier, adds: bool) -> int | None:
        word, bit = column >> 6, 1 << (column & 63)
        row = self.rows[number].copy()
        row[tier, word] ^= np.uint64(bit)
        change = int(self._weights[tier, word]) * bit
        digest = (self._digest_view[number] + (change if adds else -change)) & _U64
        known = self._interned.get(digest)
        if known is not None and np.array_equal(self.rows[known], row):
            return known
        target = self._allocate()
        if target is None:
            return None
        self.rows[target] = row
        self._digest_view[target] = digest
        self._interned.setdefault(digest, target)
        self.has_lower_tiers |= tier is not Tier.GPU
        return target

    def _allocate(self) -> int | None:
        if not self._free and self._next >= self._max_sets:
            self._collect()
        if self._free:
            return self._free.pop()
        if self._next >= self._max_sets:
            return None
        self._next += 1
        return self._next - 1

    def _collect(self) -> None:
        """Frees a bounded number of sets that no block carries, resuming where it ended."""
        unused = np.flatnonzero(self.blocks[1 : self._next] == 0) + 1
        after = unused[unused >= self._collect_from][:_COLLECTED_AT_ONCE]
        chosen = after if after.size else unused[:_COLLECTED_AT_ONCE]
        self._collect_from = int(chosen[-1]) + 1 if chosen.size else 1
        for number in chosen.tolist():
            self._forget_digest(number)
        self._free.extend(chosen.tolist())
        self._forget_derived()

    def _holding(self, column: int, tiers: Sequence[Tier]) -> NDArray[np.int64]:
        words = self.rows[: self._next, list(tiers), column >> 6]
        bits = np.bitwise_or.reduce(words, axis=1) >> np.uint64(column & 63) & np.uint64(1)
        return np.flatnonzero(bits)

    def _rewrite(self, numbers: NDArray[np.int64], rows: NDArray[np.uint64]) -> list[int]:
        """Gives sets other contents in place. Two sets may become equal; either is then right."""
        for number in numbers.tolist():
            self._forget_digest(number)
        self.rows[numbers] = rows
        self._digests[numbers] = (rows * self._weights).sum(axis=(1, 2), dtype=np.uint64)
        for number in numbers.tolist():
            self._interned.setdefault(self._digest_view[number], number)
        self._forget_derived()
        emptied: list[int] = numbers[~rows.any(axis=(1, 2))].tolist()
        return emptied

    def _forget_derived(self) -> None:
        """Numbers mean other sets from here on."""
        self.version += 1
        self._moves.clear()
        self._standing.clear()

    def _forget_digest(self, number: int) -> None:
        digest = self._digest_view[number]
        if self._interned.get(digest) == number:
            del self._interned[digest]

    def check_integrity(self) -> None:
        """Asserts that digests are true and the empty set is empty. O(sets)."""
        rows = self.rows[: self._next]
        digests = (rows * self._weights).sum(axis=(1, 2), dtype=np.uint64)
        stale = np.zeros(self._next, bool)
        stale[self._free] = True
        assert np.array_equal(digests[~stale], self._digests[: self._next][~stale])
        assert not rows[EMPTY].any()
        assert (self.blocks >= 0).all()


def unpack(words: NDArray[np.uint64]) -> NDArray[np.uint8]:
    """Bits of little-endian u64 words as 0 or 1, shape [..., 64 * words]."""
    return np.unpackbits(words.view(np.uint8), axis=-1, bitorder="little")
