"""The contents of numbered holder sets: bit matrices, of which equal ones are to share a number."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from router.core.types import Tier

EMPTY = 0
"""The number of the set without holders."""

_TIERS = len(Tier)
_U64 = (1 << 64) - 1

_COLLECTED_AT_ONCE = 4_096


class SetContents:
    """At most `max_sets` matrices, each u64 [tier, word], in `rows[number]`: a bit is a holder.

    Two numbers may stand for equal sets after `rewrite`; either is then right.
    """

    def __init__(self, max_sets: int, words: int) -> None:
        self.rows = np.zeros((max_sets, _TIERS, words), np.uint64)
        self._max_sets = max_sets
        self._digests = np.zeros(max_sets, np.uint64)
        self._digest_view = self._digests.data
        # A set's digest is linear in its bits (random odd weights per word, modulo 2^64), so that
        # one more or one less holder costs one addition. Equal digests are compared in full.
        rng = np.random.default_rng(0x9E3779B9)
        shape = (_TIERS, words)
        self._weights = rng.integers(0, 1 << 63, shape, np.uint64) * np.uint64(2) + np.uint64(1)
        self._interned: dict[int, int] = {0: EMPTY}
        self._free: list[int] = []
        self._next = 1
        self._collect_from = 1

    def __len__(self) -> int:
        return self._next - len(self._free)

    def flipped(self, number: int, column: int, tier: Tier, adds: bool) -> int | None:
        """The set that differs in this one bit, entered where it is not known.

        `adds` tells which way the bit turns. None where a number is wanted and none is left.
        """
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
        return target

    def numbers_with(self, column: int, tiers: Sequence[Tier]) -> NDArray[np.int64]:
        """The sets with the column on any of these tiers. O(sets)."""
        words = self.rows[: self._next, list(tiers), column >> 6]
        bits = np.bitwise_or.reduce(words, axis=1) >> np.uint64(column & 63) & np.uint64(1)
        return np.flatnonzero(bits)

    def rewrite(self, numbers: NDArray[np.int64], rows: NDArray[np.uint64]) -> None:
        """Gives sets other contents in place."""
        for number in numbers.tolist():
            self._forget_digest(number)
        self.rows[numbers] = rows
        self._digests[numbers] = (rows * self._weights).sum(axis=(1, 2), dtype=np.uint64)
        for number in numbers.tolist():
            self._interned.setdefault(self._digest_view[number], number)

    def free(self, numbers: Sequence[int]) -> None:
        """Gives back numbers that nobody uses any more."""
        self._free.extend(numbers)

    def collect(self, uses: NDArray[np.int64]) -> None:
        """Frees a bounded number of sets whose `uses[number]` is 0, resuming where it ended."""
        unused = np.flatnonzero(uses[1 : self._next] == 0) + 1
        after = unused[unused >= self._collect_from][:_COLLECTED_AT_ONCE]
        chosen = after if after.size else unused[:_COLLECTED_AT_ONCE]
        self._collect_from = int(chosen[-1]) + 1 if chosen.size else 1
        for number in chosen.tolist():
            self._forget_digest(number)
        # Else a column that is cleared would find these sets, and they be freed once more.
        self.rows[chosen] = 0
        self._free.extend(chosen.tolist())

    def _allocate(self) -> int | None:
        if self._free:
            return self._free.pop()
        if self._next >= self._max_sets:
            return None
        self._next += 1
        return self._next - 1

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
