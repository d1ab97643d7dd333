"""The less loaded of two candidates drawn at random: little herding from stale loads. Pure."""

from random import Random
from typing import ClassVar

from router.policies.base import Choice, Facts, Floats, Reason, rank
from router.policies.least_loaded import LoadParameters, outstanding_requests


class PowerOfTwo:
    """Costs are requests, as in `least_loaded`; those not drawn follow by load."""

    name: ClassVar[str] = "power_of_two"
    needs_overlap: ClassVar[bool] = False
    needs_load: ClassVar[bool] = True
    history: ClassVar[None] = None

    def __init__(self, parameters: LoadParameters) -> None:
        self._parameters = parameters

    def choose(self, facts: Facts, rng: Random) -> Choice:
        costs = outstanding_requests(facts, self._parameters)
        if len(costs) == 1:
            return Choice(facts.slots, costs, Reason.ONLY_CANDIDATE)
        drawn = rng.sample(range(len(costs)), 2)
        order = rank(
            _drawn_first(costs, drawn), 0.5 / self._parameters.prefill_tokens_per_request, rng
        )
        is_tied = costs[drawn[0]] == costs[drawn[1]]
        reason = Reason.TIE if is_tied else Reason.POWER_OF_TWO
        return Choice(facts.slots[order], costs, reason)


def _drawn_first(costs: Floats, drawn: list[int]) -> Floats:
    """Sort keys [n] that put the drawn before all others, each part by cost."""
    keys: Floats = costs + (costs.max() + 1)
    keys[drawn] = costs[drawn]
    return keys
