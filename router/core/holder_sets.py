"""Interned sets of holders: which replica columns hold a block, and on which tiers.

Thousands of blocks share one set, so a block carries a set's number and a replica that goes away is
one bit to clear in each set, whatever the number of blocks.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from router.core.set_contents import EMPTY, SetContents
from router.core.types import Slot, Tier

Indicator = NDArray[np.int32]

_TIERS = len(Tier)
_MAX_CACHED_MOVES = 16_384
_MAX_CACHED_STANDINGS = 1_024


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
        self._words = (columns + 63) // 64
        self._contents = SetContents(max_sets, self._words)
        self.rows = self._contents.rows
        self.blocks = np.zeros(max_sets, np.int64)
        self.has_lower_tiers = False
        self.exhausted = 0
        self.version = 0
        self._row_view = self.rows.reshape(-1).data
        self._block_view = self.blocks.data
        self._moves: dict[tuple[int, int, int, bool], int] = {}
        self._standing: dict[tuple[int, ...], list[Indicator]] = {}

    def __len__(self) -> int:
        return len(self._contents)

    def added(self, number: int, column: int, tier: Tier) -> int:
        """The set with one more holder."""
        return self._moved(number, column, tier, True)

    def removed(self, number: int, column: int, tier: Tier) -> int:
        """The set with one holder less."""
        return self._moved(number, column, tier, False)

    def holds(self, number: int, column: int, tier: Tier) -> bool:
        word = self._row_view[(number * _TIERS + tier) * self._words + (column >> 6)]
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
        numbers = self._contents.numbers_with(column, [tier])
        return int(self.blocks[numbers].sum())

    def numbers_of(self, column: int) -> NDArray[np.int64]:
        """The sets with the column on any tier. O(sets)."""
        return self._contents.numbers_with(column, list(Tier))

    def clear_column(self, column: int, tiers: Sequence[Tier]) -> list[int]:
        """Removes the column from every set on these tiers. O(sets).

        Returns the sets without a holder left: their blocks are to be moved, then they are freed.
        """
        numbers = self._contents.numbers_with(column, tiers)
        keep = ~np.uint64(1 << (column & 63))
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
            rows[:, :, column >> 6] &= ~np.uint64(1 << (column & 63))
        rows[:, :, target >> 6] |= moved << np.uint64(target & 63)
        return self._rewrite(numbers, rows)

    def free(self, numbers: Sequence[int]) -> None:
        """Gives back sets that have neither holders nor blocks."""
        self._contents.free(numbers)

    def _moved(self, number: int, column: int, tier: Tier, adds: bool) -> int:
        move = (number, column, int(tier), adds)
        target = self._moves.get(move)
        if target is not None:
            return target
        target = number
        if self.holds(number, column, tier) is not adds:
            target = self._contents.flipped(number, column, tier, adds)
            if target is None:
                self._contents.collect(self.blocks)
                self._forget_derived()
                target = self._contents.flipped(number, column, tier, adds)
        if target is None:
            self.exhausted += 1
            return number if adds else EMPTY
        self.has_lower_tiers |= adds and tier is not Tier.GPU
        if len(self._moves) >= _MAX_CACHED_MOVES:
            self._moves.clear()
        self._moves[move] = target
        return target

    def _rewrite(self, numbers: NDArray[np.int64], rows: NDArray[np.uint64]) -> list[int]:
        """Gives sets other contents; returns those that are left without a holder."""
        self._contents.rewrite(numbers, rows)
        self._forget_derived()
        emptied: list[int] = numbers[~rows.any(axis=(1, 2))].tolist()
        return emptied

    def _forget_derived(self) -> None:
        """Numbers mean other sets from here on."""
        self.version += 1
        self._moves.clear()
        self._standing.clear()

    def check_integrity(self) -> None:
        """Asserts that contents are as interned and no count is negative. O(sets)."""
        self._contents.check_integrity()
        assert (self.blocks >= 0).all()


def unpack(words: NDArray[np.uint64]) -> NDArray[np.uint8]:
    """Bits of little-endian u64 words as 0 or 1, shape [..., 64 * words]."""
    return np.unpackbits(words.view(np.uint8), axis=-1, bitorder="little")
