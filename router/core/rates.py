"""How fast each replica computes, from what its requests took. Pure.

A line through (work, time) is fitted for each replica, and its slope is the rate: what does not
grow with the work, as the way there and back, stays out of it. Old observations fade. A replica is
believed to be like the others until its own observations say clearly otherwise, because a rate that
wanders would draw requests away from what they could reuse, and on an idle fleet all to one.
"""

from dataclasses import dataclass
from math import sqrt
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from router.core.types import Slot

_MEMORY = 800.0
"""Observations after which an old one counts 1/e; those of the others count as one each round."""
_FLEET_PRIOR = 30.0
"""So many observations weigh as much as what was believed before the first."""
_REPLICA_PRIOR = 60.0
"""So many of a replica's own weigh as much as all replicas together."""
_LIKE_OTHERS = 0.25
"""Rates that differ by less are equal; of a greater difference this share is not believed."""
_STANDARD_ERRORS = 3.0
"""What a slope has to differ by more than to differ at all."""
_LEAST_FREEDOM = 10.0
"""With fewer observations beyond those that fix the lines nothing is known of the noise."""


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
    """Fading sums of one replica's observations around their means.

    `spread` of the work, `trend` of both, `scatter` of the times.
    """

    weight: float = 0.0
    mean_work: float = 0.0
    mean_ms: float = 0.0
    spread: float = 0.0
    trend: float = 0.0
    scatter: float = 0.0

    def add(self, work: float, ms: float) -> None:
        """West's update of weighted means and squares (1979)."""
        self.fade()
        self.weight += 1
        work_before, ms_before = work - self.mean_work, ms - self.mean_ms
        self.mean_work += work_before / self.weight
        self.mean_ms += ms_before / self.weight
        self.spread += work_before * (work - self.mean_work)
        self.trend += work_before * (ms - self.mean_ms)
        self.scatter += ms_before * (ms - self.mean_ms)

    def fade(self) -> None:
        """Each observation counts a little less; what they say together stays."""
        fading = 1 - 1 / _MEMORY
        self.weight *= fading
        self.spread *= fading
        self.trend *= fading
        self.scatter *= fading

    @property
    def freedom(self) -> float:
        """Observations beyond the two that fix a line."""
        return max(self.weight - 2, 0.0)

    @property
    def left_over(self) -> float:
        """Of the scatter: what the line does not explain [ms²]."""
        explained = self.trend * self.trend / self.spread if self.spread > 0 else 0.0
        return max(self.scatter - explained, 0.0)


@dataclass(slots=True)
class _Sums:
    """Of all lines. Each keeps to its own mean and slope, so that sums compare no replicas."""

    weight: float = 0.0
    spread: float = 0.0
    trend: float = 0.0
    freedom: float = 0.0
    left_over: float = 0.0

    def add(self, line: _Line, times: int) -> None:
        """-1 times to take it off."""
        self.weight += times * line.weight
        self.spread += times * line.spread
        self.trend += times * line.trend
        self.freedom += times * line.freedom
        self.left_over += times * line.left_over

    @property
    def noise(self) -> float:
        """The variance around the lines [ms²]."""
        return max(self.left_over, 0.0) / self.freedom

    @property
    def is_clear(self) -> bool:
        """Whether work takes time at all, as far as the noise lets one see."""
        if self.freedom < _LEAST_FREEDOM or self.spread <= 0 or self.trend <= 0:
            return False
        return self.trend > _STANDARD_ERRORS * sqrt(self.noise * self.spread)


class LearnedRate:
    """One kind of work, in milliseconds per unit. Observations cost O(1).

    `fleet`: of all replicas; `slowness` float64 [max_replicas]: of each, as a multiple of that.
    """

    def __init__(self, max_replicas: int) -> None:
        self.fleet = _UNTAUGHT
        self.slowness = np.ones(max_replicas)
        self._lines: dict[Slot, _Line] = {}
        self._sums = _Sums()
        self._unlike: set[Slot] = set()

    @property
    def is_uneven(self) -> bool:
        """Some replica is not like the others."""
        return bool(self._unlike)

    def observe(self, slot: Slot, work: float, ms: float) -> None:
        """`work` units took `ms`, and whatever else takes time there."""
        line = self._lines.setdefault(slot, _Line())
        self._sums.add(line, -1)
        line.add(work, ms)
        self._sums.add(line, 1)
        self.fleet = self._belief()
        self._note(slot, self._slowness(line))
        self._fade_next()

    def forget(self, slot: Slot) -> None:
        """The replica is gone; another one there is like the others until it is observed."""
        line = self._lines.pop(slot, None)
        if line is not None:
            self._sums.add(line, -1)
        if not self._lines:
            self._sums = _Sums()
        self.fleet = self._belief()
        self._note(slot, 1.0)

    def _fade_next(self) -> None:
        """Each in turn, so that one that is avoided is tried again some time."""
        slot = next(iter(self._lines))
        line = self._lines[slot] = self._lines.pop(slot)
        self._sums.add(line, -1)
        line.fade()
        self._sums.add(line, 1)
        self._note(slot, self._slowness(line))

    def _note(self, slot: Slot, slowness: float) -> None:
        self.slowness[slot] = slowness
        if slowness == 1.0:
            self._unlike.discard(slot)
        else:
            self._unlike.add(slot)

    def _belief(self) -> Belief:
        sums = self._sums
        if not sums.is_clear:
            return _UNTAUGHT
        prior_share = _FLEET_PRIOR / (_FLEET_PRIOR + sums.weight)
        return Belief((1 - prior_share) * sums.trend / sums.spread, prior_share)

    def _slowness(self, line: _Line) -> float:
        """At least 1/4 and at most 4; 1 within `_STANDARD_ERRORS` of the others."""
        sums = self._sums
        if not sums.is_clear or line.spread <= 0:
            return 1.0
        rate, prior_spread = sums.trend / sums.spread, _REPLICA_PRIOR * sums.spread / sums.weight
        ratio = (line.trend / rate + prior_spread) / (line.spread + prior_spread)
        noise = max(line.left_over / max(line.freedom, 1.0), sums.noise)
        doubt = _STANDARD_ERRORS * sqrt(noise * line.spread) / rate / (line.spread + prior_spread)
        if ratio > 1:
            return min(max((ratio - doubt) / (1 + _LIKE_OTHERS), 1.0), 4.0)
        return max(min((ratio + doubt) * (1 + _LIKE_OTHERS), 1.0), 0.25)


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
