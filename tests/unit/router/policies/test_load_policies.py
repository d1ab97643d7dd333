"""The policies that look at load alone, or at nothing."""

from collections import Counter
from random import Random

import numpy as np
import pytest

from router.policies.base import Facts, Reason, rank
from router.policies.least_loaded import LeastLoaded, LoadParameters
from router.policies.power_of_two import PowerOfTwo
from router.policies.round_robin import RoundRobin, RoundRobinParameters


def loaded(requests: list[int], prefill_tokens: list[int] | None = None, turn: int = 0) -> Facts:
    """Candidates on slots 10, 11, …, the first of which holds all of the prompt."""
    candidates, idle = len(requests), [0] * len(requests)
    held = np.array([[40] + [0] * (candidates - 1)] * 3, dtype=np.int32)
    return Facts(
        slots=np.arange(10, 10 + candidates, dtype=np.int64),
        tiers=held,
        speculative=held[0],
        loads=np.array([prefill_tokens or idle, idle, requests, idle], dtype=np.float64),
        prompt_tokens=650,
        block_size=16,
        turn=turn,
    )


def test_the_least_loaded_is_chosen_whatever_others_hold() -> None:
    choice = LeastLoaded(LoadParameters()).choose(loaded([3, 2, 5]), Random(0))
    assert choice.ranked.tolist() == [11, 10, 12]
    assert choice.reason is Reason.LEAST_LOADED


def test_waiting_prefill_weighs_like_requests() -> None:
    policy = LeastLoaded(LoadParameters(prefill_tokens_per_request=1000.0))
    assert policy.choose(loaded([1, 2], [1500, 0]), Random(0)).ranked[0] == 11
    assert policy.choose(loaded([1, 2], [900, 0]), Random(0)).ranked[0] == 10


def test_an_equal_load_is_called_a_tie() -> None:
    assert LeastLoaded(LoadParameters()).choose(loaded([2, 2, 5]), Random(0)).reason is Reason.TIE


def test_power_of_two_takes_the_less_loaded_of_its_pair() -> None:
    """The most loaded of three never wins, the least loaded whenever it is drawn."""
    policy, rng = PowerOfTwo(LoadParameters()), Random(3)
    firsts = Counter(int(policy.choose(loaded([1, 5, 9]), rng).ranked[0]) for _ in range(3000))
    assert firsts[12] == 0
    assert firsts[10] == pytest.approx(2000, abs=150)


def test_power_of_two_ranks_the_rest_by_load() -> None:
    choice = PowerOfTwo(LoadParameters()).choose(loaded([4, 3, 2, 1, 0]), Random(0))
    rest = choice.ranked.tolist()[2:]
    assert rest == sorted(rest, reverse=True)


def test_round_robin_takes_each_in_turn() -> None:
    policy = RoundRobin(RoundRobinParameters())
    firsts = [policy.choose(loaded([9, 0, 0], turn=t), Random(0)).ranked[0] for t in range(6)]
    assert firsts == [10, 11, 12, 10, 11, 12]


def test_round_robin_costs_are_the_turns_to_wait() -> None:
    choice = RoundRobin(RoundRobinParameters()).choose(loaded([0, 0, 0], turn=1), Random(0))
    assert choice.ranked.tolist() == [11, 12, 10]
    assert choice.costs.tolist() == [2, 0, 1]


def test_ranking_prefers_no_candidate_to_one_that_is_better_by_more_than_the_tolerance() -> None:
    rng = Random(5)
    costs = np.array([3.0, 1.0, 2.0, 1.05])
    for _ in range(200):
        order = rank(costs, 0.1, rng).tolist()
        assert set(order[:2]) == {1, 3}
        assert order[2:] == [2, 0]
