"""Each candidate in turn, blind to load and cache: the baseline. Pure."""

from random import Random
from typing import ClassVar

import numpy as np

from router.policies.base import Choice, Facts, Parameters, Reason


class RoundRobinParameters(Parameters):
    """None: there is nothing to set."""


class RoundRobin:
    """Costs are the turns that a candidate has to wait."""

    name: ClassVar[str] = "round_robin"
    needs_overlap: ClassVar[bool] = False
    needs_load: ClassVar[bool] = False
    history: ClassVar[None] = None

    def __init__(self, parameters: RoundRobinParameters) -> None:
        self._parameters = parameters

    def choose(self, facts: Facts, rng: Random) -> Choice:
        candidates = len(facts.slots)
        order = (np.arange(candidates) + facts.turn) % candidates
        costs = (np.arange(candidates) - facts.turn) % candidates
        reason = Reason.ONLY_CANDIDATE if candidates == 1 else Reason.ROUND_ROBIN
        return Choice(facts.slots[order], costs.astype(np.float64), reason)
