"""Sums by slot that fade: what has been going on lately. Pure."""

import numpy as np
from numpy.typing import NDArray


class FadingTotals:
    """Sums, kept in the float64 array `totals` by slot, of which half is left after each
    `half_life_s`. The array is as of the time of the last call."""

    def __init__(self, totals: NDArray[np.float64], half_life_s: float) -> None:
        self._half_life_s = half_life_s
        self._as_of = 0.0
        self._totals = totals
        self._members: set[int] = set()

    def fade(self, now: float) -> None:
        """Brings all sums to `now`. O(slots) where that is another time than before."""
        if now != self._as_of:
            self._totals *= 2.0 ** ((self._as_of - now) / self._half_life_s)
            self._as_of = now

    def add(self, slot: int, amount: float, now: float) -> None:
        self.fade(now)
        self._totals[slot] += amount

    def join(self, slot: int, now: float) -> None:
        """It begins with the mean of those that are there: with nothing it would seem idle for as
        long as they are remembered, and draw all that is new."""
        self.fade(now)
        others = list(self._members - {slot})
        self._totals[slot] = self._totals[others].mean() if others else 0.0
        self._members.add(slot)

    def leave(self, slot: int) -> None:
        self._members.discard(slot)
        self._totals[slot] = 0.0
