"""Learned rates: they come to what is observed, come back after a change, and ignore noise."""

from random import Random

import numpy as np
import pytest

from router.core.rates import ReplicaRates
from router.core.types import Slot

REPLICAS = 4
PRIOR_MS = 0.01


def prefill_ms(rates: ReplicaRates) -> list[float]:
    """What a policy with that prior takes a token to cost on each replica."""
    (learned, prior_share), _, slowness = rates.of(np.arange(REPLICAS))
    fleet = learned + PRIOR_MS * prior_share
    return [fleet * slower for slower in slowness] or [fleet] * REPLICAS


def observe(rates: ReplicaRates, ms_per_token: dict[int, float], times: int, seed: int = 0) -> None:
    """Prompts of all lengths, each with 30 ms that are no prefill, give or take 10."""
    rng = Random(seed)
    for _ in range(times):
        for slot, per_token in ms_per_token.items():
            tokens = rng.randrange(200, 4000)
            took_ms = per_token * tokens + rng.uniform(20, 40)
            rates.prefill.observe(Slot(slot), tokens, took_ms)


def test_what_is_configured_holds_until_something_is_observed() -> None:
    assert prefill_ms(ReplicaRates(REPLICAS)) == [PRIOR_MS] * REPLICAS


def test_rates_come_to_what_is_observed_whatever_was_configured() -> None:
    rates = ReplicaRates(REPLICAS)
    observe(rates, dict.fromkeys(range(REPLICAS), 2.0), times=200)
    assert prefill_ms(rates) == pytest.approx([2.0] * REPLICAS, rel=0.1)


def test_a_slower_replica_is_told_from_the_others() -> None:
    rates = ReplicaRates(REPLICAS)
    observe(rates, {0: 0.06, 1: 0.02, 2: 0.02, 3: 0.02}, times=300)
    slow, *others = prefill_ms(rates)
    assert slow > 1.4 * max(others)
    assert max(others) == pytest.approx(min(others), rel=0.1)


def test_a_replica_that_recovers_is_like_the_others_again() -> None:
    rates = ReplicaRates(REPLICAS)
    observe(rates, {0: 0.06, 1: 0.02, 2: 0.02, 3: 0.02}, times=300)
    observe(rates, dict.fromkeys(range(REPLICAS), 0.02), times=1500, seed=1)
    assert prefill_ms(rates) == pytest.approx([0.02] * REPLICAS, rel=0.1)


def test_noise_makes_no_difference_between_equal_replicas() -> None:
    rates = ReplicaRates(REPLICAS)
    observe(rates, dict.fromkeys(range(REPLICAS), 0.02), times=400)
    relative = np.array(prefill_ms(rates)) / prefill_ms(rates)[0]
    assert relative.tolist() == pytest.approx([1.0] * REPLICAS, abs=0.03)


@pytest.mark.parametrize("seed", range(8))
def test_replicas_that_differ_by_less_than_the_noise_are_exactly_alike(seed: int) -> None:
    """Short prompts, of which little of the time depends on the length: after any number."""
    rates, rng = ReplicaRates(REPLICAS), Random(seed)
    for _ in range(300):
        for slot in range(REPLICAS):
            tokens = rng.randrange(50, 200)
            rates.prefill.observe(Slot(slot), tokens, 0.01 * tokens + rng.gauss(20, 4))
        slowness = rates.of(np.arange(REPLICAS)).slowness
        assert slowness.tolist() in ([], [1.0] * REPLICAS)


def test_one_long_pause_makes_no_replica_slow() -> None:
    rates = ReplicaRates(REPLICAS)
    rates.prefill.observe(Slot(0), 4000, 3000.0)
    observe(rates, dict.fromkeys(range(REPLICAS), 0.02), times=40)
    assert rates.of(np.arange(REPLICAS)).slowness.tolist() in ([], [1.0] * REPLICAS)


def test_who_is_not_heard_of_any_more_comes_to_be_like_the_others() -> None:
    """As one that is avoided for being slow: it may have recovered."""
    rates = ReplicaRates(REPLICAS)
    observe(rates, {0: 0.06, 1: 0.02, 2: 0.02, 3: 0.02}, times=100)
    assert rates.prefill.is_uneven
    observe(rates, {1: 0.02, 2: 0.02, 3: 0.02}, times=3000, seed=1)
    assert not rates.prefill.is_uneven


def test_who_comes_to_the_place_of_a_slow_replica_is_like_the_others() -> None:
    rates = ReplicaRates(REPLICAS)
    observe(rates, {0: 0.06, 1: 0.02, 2: 0.02, 3: 0.02}, times=300)
    rates.forget(Slot(0))
    observe(rates, {1: 0.02, 2: 0.02, 3: 0.02}, times=1, seed=2)
    replaced, *others = prefill_ms(rates)
    assert replaced == pytest.approx(others[0], rel=0.1)


def test_when_all_are_gone_nothing_is_left_of_what_was_learned() -> None:
    rates = ReplicaRates(REPLICAS)
    observe(rates, {0: 0.06}, times=50)
    rates.forget(Slot(0))
    assert prefill_ms(rates) == [PRIOR_MS] * REPLICAS


def test_observations_of_one_length_teach_nothing() -> None:
    """They cannot tell prefill from what else takes time."""
    rates = ReplicaRates(REPLICAS)
    for _ in range(100):
        rates.prefill.observe(Slot(0), 1000, 500.0)
    assert prefill_ms(rates) == [PRIOR_MS] * REPLICAS


def test_steps_that_grow_with_the_blocks_there_give_the_decode_rate() -> None:
    rates, rng = ReplicaRates(REPLICAS), Random(0)
    for _ in range(300):
        blocks = rng.randrange(2000)
        rates.decode.observe(Slot(1), blocks, 5 + 0.03 * blocks)
    learned, prior_share = rates.of(np.arange(REPLICAS)).decode
    assert learned == pytest.approx(0.03 * (1 - prior_share), rel=0.01)
