"""How fast each replica computes, from what its requests took. Pure.

A line through (work, time) is fitted for each replica, and its slope is the rate: what does not
grow with the work, as the way there and back, stays out of it. Old observations fade. A replica is
believed to be like the others until its own observations say clearly otherwise, because a rate that
wanders would draw requests away from what they could reuse.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from router.core.types import Slot

_MEMORY = 400.0
"""Observations after which an old one counts 1/e."""
_FLEET_PRIOR = 30.0
"""So many observations weigh as much as what was believed before the first."""
_REPLICA_PRIOR = 60.0
"""So many of a replica's own weigh as much as all replicas together."""
_LIKE_OTHERS = 0.25
"""Rates that differ by less are equal; of a greater difference this share is not believed."""


class Belief(NamedTuple):
    """Of all replicas: a rate is `learned` and `prior_share` times what was believed before."""

    learned: float
    prior_share: float


class Rates(NamedTuple):
    """Milliseconds per token of prefill, and per KV block there of a decoding step.

    `slowness` float64 [n]: how much more each replica's prefill takes; empty where all are alike.
    """

    prefill: Belief
    decode: Belief
    slowness: NDArray[np.float64]


_UNTAUGHT = Belief(0.0, 1.0)
_ALIKE: NDArray[np.float64] = np.empty(0)
UNOBSERVED = Rates(_UNTAUGHT, _UNTAUGHT, _ALIKE)


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

    def put_on(self, other: "_Line") -> None:
        """Each line keeps to its own means, so that sums of them compare no replicas."""
        self.weight += other.weight
        self.spread += other.spread
        self.trend += other.trend

    def take_off(self, other: "_Line") -> None:
        self.weight -= other.weight
        self.spread -= other.spread
        self.trend -= other.trend


class LearnedRate:
    """One kind of work, in milliseconds per unit. Observations cost O(1).

    `fleet`: of all replicas; `slowness` float64 [max_replicas]: of each, as a multiple of that.
    """

    def __init__(self, max_replicas: int) -> None:
        self.fleet = _UNTAUGHT
        self.slowness = np.ones(max_replicas)
        self._lines: dict[Slot, _Line] = {}
        self._sums = _Line()
        self._unlike: set[Slot] = set()

    @property
    def is_uneven(self) -> bool:
        """Some replica is not like the others."""
        return bool(self._unlike)

    def observe(self, slot: Slot, work: float, ms: float) -> None:
        """`work` units took `ms`, and whatever else takes time there."""
        line = self._lines.setdefault(slot, _Line())
        self._sums.take_off(line)
        line.add(work, ms)
        self._sums.put_on(line)
        self.fleet = self._belief()
        self._note(slot, self._slowness(line))

    def forget(self, slot: Slot) -> None:
        """The replica is gone; another one there is like the others until it is observed."""
        line = self._lines.pop(slot, None)
        if line is not None:
            self._sums.take_off(line)
        if not self._lines:
            self._sums = _Line()
        self.fleet = self._belief()
        self._note(slot, 1.0)

    def _note(self, slot: Slot, slowness: float) -> None:
        self.slowness[slot] = slowness
        if slowness == 1.0:
            self._unlike.discard(slot)
        else:
            self._unlike.add(slot)

    def _belief(self) -> Belief:
        sums = self._sums
        if sums.spread <= 0 or sums.trend <= 0:
            return _UNTAUGHT
        prior_share = _FLEET_PRIOR / (_FLEET_PRIOR + max(sums.weight, 0.0))
        return Belief((1 - prior_share) * sums.trend / sums.spread, prior_share)

    def _slowness(self, line: _Line) -> float:
        """At least 1/4 and at most 4."""
        sums = self._sums
        if sums.spread <= 0 or sums.trend <= 0 or sums.weight <= 0:
            return 1.0
        prior_spread = _REPLICA_PRIOR * sums.spread / sums.weight
        relative_trend = line.trend * sums.spread / sums.trend
        ratio = (relative_trend + prior_spread) / (line.spread + prior_spread)
        if ratio > 1:
            return min(max(ratio / (1 + _LIKE_OTHERS), 1.0), 4.0)
        return max(min(ratio * (1 + _LIKE_OTHERS), 1.0), 0.25)


class ReplicaRates:
    """What is known of a fleet, from its prefills and its decoding steps."""

    def __init__(self, max_replicas: int) -> None:
        self.prefill = LearnedRate(max_replicas)
        self.decode = LearnedRate(max_replicas)

    def of(self, slots: NDArray[np.int64]) -> Rates:
        """As they stand, for these replicas."""
        slowness = self.prefill.slowness.take(slots) if self.prefill.is_uneven else _ALIKE
        return Rates(self.prefill.fleet, self.decode.fleet, slowness)

    def forget(self, slot: Slot) -> None:
        """The replica is gone."""
        self.prefill.forget(slot)
        self.decode.forget(slot)
