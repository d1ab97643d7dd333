"""The replica with the least outstanding work, whatever it holds. Pure."""

from random import Random
from typing import ClassVar

import numpy as np
from pydantic import Field

from router.policies.base import Choice, Facts, Floats, Parameters, Reason, rank


class LoadParameters(Parameters):
    """How a replica's bookings become one figure, in requests.

    `prefill_tokens_per_request`: booked prefill tokens that weigh as much as one more request.
    """

    prefill_tokens_per_request: float = Field(2048.0, gt=0)


class LeastLoaded:
    """Costs are requests: those booked, plus their tokens still to be prefilled."""

    name: ClassVar[str] = "least_loaded"
    needs_overlap: ClassVar[bool] = False
    needs_load: ClassVar[bool] = True
    history: ClassVar[None] = None

    def __init__(self, parameters: LoadParameters) -> None:
        self._parameters = parameters

    def choose(self, facts: Facts, rng: Random) -> Choice:
        return least_loaded(facts, self._parameters, rng)


def least_loaded(facts: Facts, parameters: LoadParameters, rng: Random) -> Choice:
    """The rule itself, for policies that know nothing better about some requests."""
    costs = outstanding_requests(facts, parameters)
    order = rank(costs, 0.5 / parameters.prefill_tokens_per_request, rng)
    return Choice(facts.slots[order], costs, _reason(costs))


def outstanding_requests(facts: Facts, parameters: LoadParameters) -> Floats:
    """Load [n] of each candidate in requests."""
    return facts.requests + facts.prefill_tokens / parameters.prefill_tokens_per_request


def _reason(costs: Floats) -> Reason:
    if len(costs) == 1:
        return Reason.ONLY_CANDIDATE
    is_tied = np.count_nonzero(costs == costs.min()) > 1
    return Reason.TIE if is_tied else Reason.LEAST_LOADED
