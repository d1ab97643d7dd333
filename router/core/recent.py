"""Sums by slot that fade: what has been going on lately. Pure."""

import numpy as np
from numpy.typing import NDArray

_MAX_HALVINGS = 64.0
"""Past that many half-lives since the base, sums are rescaled, far from where floats overflow."""


class FadingTotals:
    """Totals float64 [max_replicas] of which half is left after each `half_life_s`.

    Kept as of a base time, with later additions scaled up instead of earlier ones down, so that
    adding touches one cell only.
    """

    def __init__(self, max_replicas: int, half_life_s: float) -> None:
        self._half_life_s = half_life_s
        self._base = 0.0
        self._totals = np.zeros(max_replicas)

    def add(self, slot: int, amount: float, now: float) -> None:
        halvings = (now - self._base) / self._half_life_s
        if halvings > _MAX_HALVINGS:
            self._totals *= 2.0**-halvings
            self._base, halvings = now, 0.0
        self._totals[slot] += amount * 2.0**halvings

    def at(self, now: float, slots: NDArray[np.int64]) -> NDArray[np.float64]:
        """What is left at `now` of the totals of `slots`. A copy."""
        left: NDArray[np.float64] = self._totals.take(slots)
        left *= 2.0 ** (-(now - self._base) / self._half_life_s)
        return left

    def clear(self, slot: int) -> None:
        self._totals[slot] = 0.0
