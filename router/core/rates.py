"""How fast each replica computes, from what its requests took. Pure.

A line through (work, time) is fitted for each replica, and its slope is the rate: what does not
grow with the work, as the way there and back, stays out of it. Old observations fade. A replica is
believed to be like the others until its own observations say clearly otherwise, because a rate that
wanders would draw requests away from what they could reuse.
"""

from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from router.core.types import Slot

_MEMORY = 400.0
"""Observations after which an old one counts 1/e."""
_FLEET_PRIOR = 30.0
"""So many observations weigh as much as what was believed before the first."""
_REPLICA_PRIOR = 60.0
"""So many of a replica's own weigh as much as all replicas together."""
_LIKE_OTHERS = 0.25
"""Rates that differ by less are equal; of a greater difference this share is not believed."""


class Rate(IntEnum):
    """The rows of an array of rates. One is `LEARNED + PRIOR_SHARE · what was believed before`."""

    PREFILL_LEARNED = 0
    PREFILL_PRIOR_SHARE = 1
    DECODE_LEARNED = 2
    DECODE_PRIOR_SHARE = 3


@dataclass(slots=True)
class _Line:
    """Fading sums of one replica's observations around their means."""

    weight: float = 0.0
    mean_work: float = 0.0
    mean_ms: float = 0.0
    spread: float = 0.0
    trend: float = 0.0

    def add(self, work: float, ms: float) -> None:
        """West's update of weighted means and squares (1979)."""
        fading = 1 - 1 / _MEMORY
        self.weight = self.weight * fading + 1
        before = work - self.mean_work
        self.mean_work += before / self.weight
        self.mean_ms += (ms - self.mean_ms) / self.weight
        self.spread = self.spread * fading + before * (work - self.mean_work)
        self.trend = self.trend * fading + before * (ms - self.mean_ms)


class LearnedRates:
    """One kind of work: `learned` and `prior_share` are rows [max_replicas] that it writes.

    A rate is milliseconds per unit of work. Observations cost O(1).
    """

    def __init__(self, learned: "memoryview[float]", prior_share: "memoryview[float]") -> None:
        self._learned = learned
        self._prior_share = prior_share
        self._lines: dict[Slot, _Line] = {}
        self._fleet = _Line()

    def observe(self, slot: Slot, work: float, ms: float) -> None:
        """`work` units took `ms`, and whatever else takes time there."""
        line = self._lines.setdefault(slot, _Line())
        weight, spread, trend = line.weight, line.spread, line.trend
        line.add(work, ms)
        fleet = self._fleet
        fleet.weight += line.weight - weight
        fleet.spread += line.spread - spread
        fleet.trend += line.trend - trend
        self._write(slot, self._ratio(line))

    def forget(self, slot: Slot) -> None:
        """The replica is gone; another one there is like the others again."""
        line = self._lines.pop(slot, None)
        if line is not None:
            self._fleet.weight -= line.weight
            self._fleet.spread -= line.spread
            self._fleet.trend -= line.trend
        if not self._lines:
            self._fleet = _Line()
        self._write(slot, 1.0)

    def _write(self, slot: Slot, ratio: float) -> None:
        learned, share = self._fleet_rate()
        self._learned[slot], self._prior_share[slot] = ratio * learned, ratio * share

    def _fleet_rate(self) -> tuple[float, float]:
        """The slope of all replicas together, and the share of it that is still prior."""
        fleet = self._fleet
        believed = _FLEET_PRIOR / (_FLEET_PRIOR + max(fleet.weight, 0.0))
        if fleet.spread <= 0 or fleet.trend <= 0:
            return 0.0, 1.0
        return (1 - believed) * fleet.trend / fleet.spread, believed

    def _ratio(self, line: _Line) -> float:
        """How much slower than the others, at least 1/4 and at most 4."""
        fleet = self._fleet
        if fleet.spread <= 0 or fleet.trend <= 0 or fleet.weight <= 0:
            return 1.0
        prior_spread = _REPLICA_PRIOR * fleet.spread / fleet.weight
        slope = (line.trend / (fleet.trend / fleet.spread) + prior_spread) / (
            line.spread + prior_spread
        )
        ratio = min(max(slope, 0.25), 4.0)
        if ratio > 1:
            return max(ratio / (1 + _LIKE_OTHERS), 1.0)
        return min(ratio * (1 + _LIKE_OTHERS), 1.0)


class ReplicaRates:
    """Of prefill by token, and of a decoding step by KV block on the replica.

    `rates`: float64 [4, max_replicas] by `Rate`, live and read-only; a prior until observed.
    """

    def __init__(self, max_replicas: int) -> None:
        rates = np.zeros((len(Rate), max_replicas))
        rates[[Rate.PREFILL_PRIOR_SHARE, Rate.DECODE_PRIOR_SHARE]] = 1.0
        rows: list[memoryview[float]] = [row.data for row in rates[:]]
        self.prefill = LearnedRates(rows[Rate.PREFILL_LEARNED], rows[Rate.PREFILL_PRIOR_SHARE])
        self.decode = LearnedRates(rows[Rate.DECODE_LEARNED], rows[Rate.DECODE_PRIOR_SHARE])
        self.rates = rates.view()
        self.rates.flags.writeable = False

    def forget(self, slot: Slot) -> None:
        """The replica is gone."""
        self.prefill.forget(slot)
        self.decode.forget(slot)
