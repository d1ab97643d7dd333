"""`kv_aware`: what a block is worth, what load costs, and which reason is given."""

from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from router.core.errors import ConfigurationError
from router.core.rates import Belief, Rates, ReplicaRates
from router.core.types import Slot
from router.policies.base import Choice, Facts, Reason
from router.policies.kv_aware import KvAware
from router.policies.kv_aware_parameters import KvAwareParameters
from router.policies.registry import PolicySpec, make_policy

BLOCK_SIZE = 16


def facts(
    *,
    gpu: list[int],
    cpu: list[int] | None = None,
    storage: list[int] | None = None,
    speculative: list[int] | None = None,
    prefill_tokens: list[int] | None = None,
    decode_blocks: list[int] | None = None,
    requests: list[int] | None = None,
    recent_tokens: list[int] | None = None,
    prompt_tokens: int = 100 * BLOCK_SIZE,
) -> Facts:
    """Overlaps and loads by candidate; tiers may be given un-nested and are nested here."""
    none = [0] * len(gpu)
    tiers = np.maximum.accumulate(np.array([gpu, cpu or none, storage or none], dtype=np.int32))
    return Facts(
        slots=np.arange(len(gpu), dtype=np.int64),
        tiers=tiers,
        speculative=np.maximum(np.array(speculative or none, dtype=np.int32), tiers[0]),
        loads=np.array(
            [load or none for load in (prefill_tokens, decode_blocks, requests, recent_tokens)],
            dtype=np.float64,
        ),
        prompt_tokens=prompt_tokens,
        block_size=BLOCK_SIZE,
    )


def choose(given: Facts, **parameters: float) -> Choice:
    return KvAware(KvAwareParameters.model_validate(parameters)).choose(given, Random(0))


def chosen(given: Facts, **parameters: float) -> int:
    return int(choose(given, **parameters).ranked[0])


PRICES = {
    "prefill_ms_per_token": 0.1,
    "prefill_base_ms": 5.0,
    "decode_ms_per_block": 0.2,
    "queue_weight": 4.0,
    "overlap_weight": 3.0,
    "interference_weight": 0.5,
    "recent_share_tokens": 1400.0,
    "patience_tokens": 2000.0,
}


def loaded() -> Facts:
    """One candidate that holds 40 of 100 blocks, with more waiting than that."""
    return facts(
        gpu=[40],
        prefill_tokens=[900],
        decode_blocks=[300],
        requests=[2],
        recent_tokens=[4000],
    )


def test_costs_are_the_documented_terms_in_milliseconds() -> None:
    own = 50 + 60 * BLOCK_SIZE
    first_token = 900 + own + 300 * 2 - 0.3 * 40 * BLOCK_SIZE
    terms = KvAware(KvAwareParameters.model_validate(PRICES)).terms(loaded())
    assert {name: part.tolist() for name, part in terms.items()} == {
        "waiting": pytest.approx([0.1 * (900 + 3 * (900 - 40 * BLOCK_SIZE))]),
        "own_prefill": pytest.approx([0.1 * own * 3]),
        "others_delay": pytest.approx([0.1 * own * 2 * 0.5]),
        "recent": pytest.approx([0.1 * 1400 * 4000 / (4000 + 100_000)]),
        "patience": pytest.approx([0.1 * first_token**2 / 2000]),
    }


def test_the_terms_add_up_to_the_cost() -> None:
    policy = KvAware(KvAwareParameters.model_validate(PRICES))
    for given_facts in (loaded(), facts(gpu=[0, 0], requests=[1, 3])):
        costs = policy.choose(given_facts, Random(0)).costs
        assert sum(policy.terms(given_facts).values()).tolist() == pytest.approx(costs.tolist())


def test_siblings_wait_for_their_prefix_instead_of_having_it_computed_again() -> None:
    """Candidate 0 is about to compute 590 of the prompt's 600 blocks, the other is idle."""
    on_its_way = facts(
        gpu=[0, 0],
        speculative=[590, 0],
        prefill_tokens=[600 * BLOCK_SIZE, 0],
        decode_blocks=[600, 0],
        requests=[1, 0],
        recent_tokens=[600 * BLOCK_SIZE, 0],
        prompt_tokens=600 * BLOCK_SIZE,
    )
    assert chosen(on_its_way) == 0
    strangers = replace(on_its_way, speculative=np.zeros(2, np.int32))
    assert chosen(strangers) == 1


def test_a_long_wait_is_dearer_than_the_same_tokens_in_short_ones() -> None:
    costs = choose(facts(gpu=[0, 0, 0], prefill_tokens=[0, 20_000, 40_000])).costs
    assert costs[2] - costs[1] > 1.5 * (costs[1] - costs[0])
    costs = choose(
        facts(gpu=[0, 0, 0], prefill_tokens=[0, 20_000, 40_000]), patience_tokens=1e12
    ).costs
    assert costs[2] - costs[1] == pytest.approx(costs[1] - costs[0])


def test_a_cache_without_room_for_the_prompt_counts_as_a_wait() -> None:
    full = replace(facts(gpu=[0, 0]), room_tokens=np.array([0.0, 1e9]))
    assert chosen(full) == 1
    assert chosen(replace(full, room_tokens=np.array([1e9, 0.0]))) == 0
    held = replace(facts(gpu=[100, 0]), room_tokens=np.array([200.0, 1e9]))
    assert chosen(held) == 0


def test_observed_rates_take_the_place_of_the_configured_ones() -> None:
    """Here a half of them is; candidate 0 computes four times as slowly."""
    given_facts = facts(gpu=[0, 0], prefill_tokens=[500, 500])
    rates = Rates(Belief(0.05, 0.5), Belief(0.1, 0.5), np.array([4.0, 1.0]))
    costs = choose(replace(given_facts, rates=rates), **PRICES).costs
    configured = choose(given_facts, **PRICES).costs
    assert costs.tolist() == pytest.approx([4 * configured[0], configured[1]])


def learned(slownesses: list[float], longest_tokens: int, seed: int) -> Rates:
    """From 60 prompts each on a busy machine, which makes every one wait for some 10 ms."""
    rates, rng = ReplicaRates(len(slownesses)), Random(seed)
    for _ in range(60):
        for slot, slowness in enumerate(slownesses):
            tokens = rng.randrange(50, longest_tokens)
            took_ms = 0.02 * slowness * tokens + rng.expovariate(1 / 10)
            rates.prefill.observe(Slot(slot), tokens, took_ms)
    return rates.of(np.arange(len(slownesses)))


def where_idle_ones_are_sent(rates: Rates) -> set[int]:
    """Each by itself, on replicas of which none holds anything."""
    policy, rng = KvAware(KvAwareParameters()), Random(0)
    idle = replace(facts(gpu=[0] * 4), rates=rates)
    return {int(policy.choose(idle, rng).ranked[0]) for _ in range(100)}


@pytest.mark.parametrize("seed", range(8))
def test_an_idle_fleet_of_replicas_alike_is_used_whole_whatever_the_noise(seed: int) -> None:
    assert where_idle_ones_are_sent(learned([1.0] * 4, 200, seed)) == {0, 1, 2, 3}


@pytest.mark.parametrize("seed", range(8))
def test_a_replica_of_a_quarter_of_the_speed_is_avoided_while_others_idle(seed: int) -> None:
    assert where_idle_ones_are_sent(learned([1.0, 1.0, 4.0, 1.0], 1600, seed)) == {0, 1, 3}


def test_the_longest_overlap_wins_among_equally_loaded() -> None:
    assert chosen(facts(gpu=[10, 80, 40])) == 1


def test_the_longest_overlap_loses_once_waiting_there_costs_more_than_computing() -> None:
    crowded = facts(gpu=[0, 20], prefill_tokens=[0, 20_000], requests=[0, 10])
    assert chosen(crowded) == 0
    assert choose(crowded).reason is Reason.OVERLAP_OUTWEIGHED


def test_the_delay_to_requests_that_run_there_counts() -> None:
    """Equal waiting time, but one of them has 20 requests that the prefill would hold up."""
    busy = facts(gpu=[0, 10], requests=[0, 20])
    assert chosen(busy, max_load_ratio=100.0) == 0
    assert chosen(busy, max_load_ratio=100.0, interference_weight=0.0) == 1


def test_long_running_output_counts_even_without_waiting_prefill() -> None:
    assert chosen(facts(gpu=[0, 0], decode_blocks=[0, 5_000])) == 0


def test_tokens_computed_there_lately_decide_between_otherwise_equal_replicas() -> None:
    assert chosen(facts(gpu=[0, 0], recent_tokens=[50_000, 0])) == 1
    assert chosen(facts(gpu=[50, 0], recent_tokens=[5_000, 0])) == 0


def test_what_was_computed_lately_counts_by_share_not_by_tokens() -> None:
    """At a hundred times the rate a replica that did a hundredth more is no more to be avoided."""
    warm, cold = [50, 0], [0, 0]
    for scale in (100_000, 10_000_000):
        assert chosen(facts(gpu=warm, recent_tokens=[101 * scale // 100, scale])) == 0
        assert chosen(facts(gpu=cold, recent_tokens=[101 * scale // 100, scale])) == 1
        assert chosen(facts(gpu=warm, recent_tokens=[3 * scale, scale])) == 1


def test_a_slower_tier_is_worth_less_than_gpu_and_more_than_computing() -> None:
    tiers = facts(gpu=[0, 0, 0, 50], cpu=[0, 0, 50, 0], storage=[0, 50, 0, 0])
    assert choose(tiers).ranked.tolist() == [3, 2, 1, 0]


def test_blocks_of_several_tiers_each_count_at_their_own_cost() -> None:
    """20 blocks in GPU, 20 more in CPU and 10 more in storage, against their worth in GPU."""
    costs = choose(
        facts(gpu=[20, 42], cpu=[40, 0], storage=[50, 0]),
        cpu_block_cost=0.25,
        storage_block_cost=0.3,
    ).costs
    assert costs[0] == pytest.approx(costs[1])


def test_blocks_on_their_way_attract_less_than_those_that_are_there() -> None:
    tokens = [50 * BLOCK_SIZE, 0, 0]
    both = facts(gpu=[0, 50, 0], speculative=[50, 0, 0], prefill_tokens=tokens)
    assert choose(both).ranked.tolist() == [1, 0, 2]


def test_reasons_tell_confirmed_from_expected_blocks() -> None:
    assert choose(facts(gpu=[50, 0])).reason is Reason.KV_OVERLAP
    assert choose(facts(gpu=[0, 0], cpu=[50, 0])).reason is Reason.KV_OVERLAP
    assert choose(facts(gpu=[0, 0], speculative=[50, 0])).reason is Reason.SPECULATIVE_OVERLAP


def test_an_unmatched_prompt_goes_to_the_least_loaded() -> None:
    choice = choose(facts(gpu=[0, 0, 0], prefill_tokens=[900, 100, 500], requests=[1, 1, 1]))
    assert choice.ranked.tolist() == [1, 2, 0]
    assert choice.reason is Reason.NO_OVERLAP


def test_a_prompt_without_a_full_block_goes_to_the_least_loaded() -> None:
    choice = choose(facts(gpu=[0, 0], prefill_tokens=[900, 0], prompt_tokens=BLOCK_SIZE - 1))
    assert int(choice.ranked[0]) == 1
    assert choice.reason is Reason.SHORT_PROMPT


def test_a_short_prompt_ignores_overlap() -> None:
    given = facts(gpu=[3, 0], prefill_tokens=[20, 0], prompt_tokens=4 * BLOCK_SIZE)
    assert chosen(given) == 0
    choice = choose(given, min_prompt_blocks=5)
    assert int(choice.ranked[0]) == 1
    assert choice.reason is Reason.SHORT_PROMPT


def test_overlap_below_the_minimum_counts_as_none() -> None:
    given = facts(gpu=[7, 4], requests=[1, 0], prefill_tokens=[10, 0])
    assert choose(given, min_overlap_blocks=8).reason is Reason.NO_OVERLAP
    costs = choose(given, min_overlap_blocks=5).costs
    assert costs[1] == choose(facts(gpu=[0, 0]), min_overlap_blocks=5).costs[1]


def test_a_wholly_held_prompt_still_computes_its_last_block() -> None:
    whole = choose(facts(gpu=[100]))
    all_but_one = choose(facts(gpu=[99]))
    assert whole.costs[0] == all_but_one.costs[0]


def test_a_replica_over_the_load_ratio_comes_after_all_others() -> None:
    hot = facts(gpu=[99, 0, 0, 0], requests=[30, 5, 5, 5])
    gentle = {"interference_weight": 0.0, "decode_ms_per_block": 0.0}
    assert chosen(hot, max_load_ratio=10.0, **gentle) == 0
    assert choose(hot, max_load_ratio=2.0, **gentle).ranked.tolist()[-1] == 0


def test_an_idle_fleet_has_nobody_over_the_load_ratio() -> None:
    assert chosen(facts(gpu=[0, 50, 0, 0]), max_load_ratio=1.0) == 1


def test_costs_within_the_tolerance_are_decided_by_chance_and_others_never() -> None:
    policy = KvAware(KvAwareParameters(tie_tolerance_ms=5.0))
    near = facts(gpu=[0, 0, 0], prefill_tokens=[0, 10, 500])
    rng = Random(1)
    first = {int(policy.choose(near, rng).ranked[0]) for _ in range(200)}
    assert first == {0, 1}


@settings(deadline=None)
@given(st.lists(st.integers(0, 99), min_size=2, max_size=5), st.integers(1, 8), st.data())
def test_more_overlap_never_repels_under_a_minimum_overlap(
    gpu: list[int], minimum: int, data: st.DataObject
) -> None:
    position = data.draw(st.integers(0, len(gpu) - 1))
    requests = data.draw(st.lists(st.integers(0, 9), min_size=len(gpu), max_size=len(gpu)))
    warmer = list(gpu)
    warmer[position] += data.draw(st.integers(1, 20))
    ranks = [
        choose(facts(gpu=depths, requests=requests), min_overlap_blocks=minimum)
        .ranked.tolist()
        .index(position)
        for depths in (gpu, warmer)
    ]
    assert ranks[1] <= ranks[0]


def test_storage_dearer_than_memory_is_required() -> None:
    with pytest.raises(ConfigurationError, match="storage_block_cost is below cpu_block_cost"):
        make_policy(PolicySpec("kv_aware", '{"cpu_block_cost": 0.6}'))
