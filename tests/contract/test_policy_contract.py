"""What every routing policy promises, whatever its rule. Runs on each name in the registry."""

from collections import Counter
from collections.abc import Sequence
from functools import partial
from random import Random

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import fields, replace
from numpy.typing import NDArray
from pydantic import ValidationError
from xxhash import xxh3_64_intdigest

from router.core.errors import ConfigurationError
from router.core.load_totals import Load
from router.policies.base import Choice, Facts, Hints, Reason, RoutingPolicy
from router.policies.registry import POLICIES, PolicySpec, make_policy

BLOCK_SIZE = 16

calmly = partial(settings, deadline=None, suppress_health_check=[HealthCheck.too_slow])
"""A loaded machine is no defect."""

pytestmark = pytest.mark.parametrize("name", sorted(POLICIES))


@st.composite
def some_facts(draw: st.DrawFn, max_load: int = 100_000) -> Facts:
    """Any facts that the selector can build: distinct slots, nested overlaps, loads from 0."""
    slots = draw(st.lists(st.integers(0, 999), min_size=1, max_size=9, unique=True))
    prompt_tokens = draw(st.integers(0, 2000))
    prompt_blocks = prompt_tokens // BLOCK_SIZE

    def row(most: int) -> list[int]:
        size = len(slots)
        return draw(st.lists(st.integers(0, most), min_size=size, max_size=size))

    tiers = np.sort(np.array([row(prompt_blocks) for _ in range(3)], dtype=np.int32), axis=0)
    session = draw(st.none() | st.text(max_size=8))
    return Facts(
        slots=np.array(slots, dtype=np.int64),
        tiers=tiers,
        speculative=np.maximum(np.array(row(prompt_blocks), dtype=np.int32), tiers[0]),
        loads=np.array([row(200 if load is Load.REQUESTS else max_load) for load in Load], float),
        prompt_tokens=prompt_tokens,
        block_size=BLOCK_SIZE,
        turn=draw(st.integers(0, 10_000)),
        hints=Hints(session_hint=session),
        hashes=chain(draw(st.integers(1, 2**32)), prompt_blocks),
        replica_keys=named(slots),
        history=np.array(row(prompt_blocks), dtype=np.int32),
    )


def chain(start: int, blocks: int) -> NDArray[np.uint64]:
    """Hashes of a prompt of which nobody has seen the like."""
    return np.arange(start, start + blocks, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)


def named(slots: Sequence[int]) -> NDArray[np.uint64]:
    """The digests of the names of whoever sits on these slots."""
    return np.array([xxh3_64_intdigest(b"replica-%d" % slot) for slot in slots], np.uint64)


def idle(candidates: int, *, prompt_tokens: int = 640, turn: int = 0) -> Facts:
    """Candidates that hold nothing and do nothing."""
    return Facts(
        slots=np.arange(candidates, dtype=np.int64),
        tiers=np.zeros((3, candidates), dtype=np.int32),
        speculative=np.zeros(candidates, dtype=np.int32),
        loads=np.zeros((len(Load), candidates)),
        prompt_tokens=prompt_tokens,
        block_size=BLOCK_SIZE,
        turn=turn,
        hashes=chain(1 + 1000 * turn, prompt_tokens // BLOCK_SIZE),
        replica_keys=named(range(candidates)),
        history=np.zeros(candidates, dtype=np.int32),
    )


def policy(name: str) -> RoutingPolicy:
    return make_policy(PolicySpec(name))


def rank_of(choice: Choice, slot: int) -> int:
    return choice.ranked.tolist().index(slot)


@calmly()
@given(facts=some_facts(), seed=st.integers(0, 2**32))
def test_ranks_every_candidate_once_and_nothing_else(name: str, facts: Facts, seed: int) -> None:
    choice = policy(name).choose(facts, Random(seed))
    assert sorted(choice.ranked.tolist()) == sorted(facts.slots.tolist())
    assert choice.costs.shape == facts.slots.shape
    assert np.isfinite(choice.costs).all()
    assert choice.reason in Reason


@calmly()
@given(facts=some_facts(), seed=st.integers(0, 2**32))
def test_equal_facts_and_chance_give_an_equal_choice(name: str, facts: Facts, seed: int) -> None:
    """Also from one and the same policy object: it remembers nothing."""
    used = policy(name)
    first = used.choose(facts, Random(seed))
    for again in (used.choose(facts, Random(seed)), policy(name).choose(facts, Random(seed))):
        assert again.ranked.tolist() == first.ranked.tolist()
        assert again.costs.tolist() == first.costs.tolist()
        assert again.reason is first.reason


@calmly()
@given(facts=some_facts())
def test_changes_no_facts(name: str, facts: Facts) -> None:
    arrays = [field.name for field in fields(facts) if field.name not in _SCALARS]
    for array in arrays:
        getattr(facts, array).flags.writeable = False
    policy(name).choose(facts, Random(0))


_SCALARS = {"prompt_tokens", "block_size", "turn", "hints", "rates"}


def test_a_single_candidate_is_chosen_for_that_reason(name: str) -> None:
    choice = policy(name).choose(idle(1), Random(0))
    assert choice.ranked.tolist() == [0]
    assert choice.reason is Reason.ONLY_CANDIDATE


def test_an_empty_prompt_is_placed(name: str) -> None:
    choice = policy(name).choose(idle(3, prompt_tokens=0), Random(0))
    assert sorted(choice.ranked.tolist()) == [0, 1, 2]


def test_huge_loads_and_prompts_are_ranked(name: str) -> None:
    huge = np.array([2.0**60, 2.0**61, 0.0])
    facts = replace(idle(3), loads=np.stack([huge] * len(Load)), prompt_tokens=2**40)
    chosen = policy(name)
    choice = chosen.choose(facts, Random(0))
    assert sorted(choice.ranked.tolist()) == [0, 1, 2]
    assert np.isfinite(choice.costs).all()
    if chosen.needs_load:
        assert rank_of(choice, 2) < rank_of(choice, 1)


def test_equal_candidates_get_equal_shares(name: str) -> None:
    chosen, rng, shares = policy(name), Random(7), Counter[int]()
    for turn in range(4000):
        shares[int(chosen.choose(idle(4, turn=turn), rng).ranked[0])] += 1
    assert all(850 < shares[slot] < 1150 for slot in range(4)), shares


@calmly(max_examples=200)
@given(facts=some_facts(), data=st.data())
def test_more_load_never_makes_a_replica_more_attractive(
    name: str, facts: Facts, data: st.DataObject
) -> None:
    chosen = policy(name)
    if not chosen.needs_load:
        return
    position = data.draw(st.integers(0, len(facts.slots) - 1))
    raised = facts.loads.copy()
    raised[data.draw(st.sampled_from(Load)), position] += data.draw(st.integers(1, 5000))
    busier = replace(facts, loads=raised)
    slot, seed = int(facts.slots[position]), data.draw(st.integers(0, 2**32))
    before = rank_of(chosen.choose(facts, Random(seed)), slot)
    assert rank_of(chosen.choose(busier, Random(seed)), slot) >= before


@calmly(max_examples=200)
@given(facts=some_facts(), data=st.data())
def test_more_overlap_never_makes_a_replica_less_attractive(
    name: str, facts: Facts, data: st.DataObject
) -> None:
    chosen = policy(name)
    if not chosen.needs_overlap or not facts.prompt_blocks:
        return
    position = data.draw(st.integers(0, len(facts.slots) - 1))
    depth = data.draw(st.integers(0, facts.prompt_blocks))
    first_row = data.draw(st.integers(0, 3))
    tiers, speculative = facts.tiers.copy(), facts.speculative.copy()
    tiers[first_row:, position] = np.maximum(tiers[first_row:, position], depth)
    speculative[position] = max(speculative[position], tiers[0, position])
    if first_row == 3:
        speculative[position] = max(speculative[position], depth)
    warmer = replace(facts, tiers=tiers, speculative=speculative)
    slot, seed = int(facts.slots[position]), data.draw(st.integers(0, 2**32))
    before = rank_of(chosen.choose(facts, Random(seed)), slot)
    assert rank_of(chosen.choose(warmer, Random(seed)), slot) <= before


@calmly(max_examples=200)
@given(facts=some_facts(), data=st.data())
def test_more_history_never_makes_a_replica_less_attractive(
    name: str, facts: Facts, data: st.DataObject
) -> None:
    chosen = policy(name)
    if chosen.history is None:
        return
    position = data.draw(st.integers(0, len(facts.slots) - 1))
    history = facts.history.copy()
    history[position] = data.draw(st.integers(history[position], facts.prompt_blocks))
    slot, seed = int(facts.slots[position]), data.draw(st.integers(0, 2**32))
    before = rank_of(chosen.choose(facts, Random(seed)), slot)
    after = chosen.choose(replace(facts, history=history), Random(seed))
    assert rank_of(after, slot) <= before


@calmly()
@given(facts=some_facts(), seed=st.integers(0, 2**32))
def test_one_that_needs_no_overlap_does_not_look_at_it(name: str, facts: Facts, seed: int) -> None:
    chosen = policy(name)
    if chosen.needs_overlap:
        return
    blind = replace(
        facts, tiers=np.zeros_like(facts.tiers), speculative=np.zeros_like(facts.speculative)
    )
    expected = chosen.choose(blind, Random(seed)).ranked.tolist()
    assert chosen.choose(facts, Random(seed)).ranked.tolist() == expected


def test_an_unknown_parameter_is_refused_by_name(name: str) -> None:
    with pytest.raises(ConfigurationError, match="overlap_wieght") as caught:
        make_policy(PolicySpec(name, '{"overlap_wieght": 1.0}'), key="rules[0].")
    assert caught.value.key == "rules[0].parameters.overlap_wieght"


def test_a_parameter_of_the_wrong_type_is_refused_by_name(name: str) -> None:
    for parameter in POLICIES[name].parameters.model_fields:
        with pytest.raises(ConfigurationError) as caught:
            make_policy(PolicySpec(name, f'{{"{parameter}": "much"}}'))
        assert caught.value.key == f"parameters.{parameter}"


def test_parameters_are_frozen(name: str) -> None:
    parameters = POLICIES[name].parameters()
    for parameter in type(parameters).model_fields:
        with pytest.raises(ValidationError, match="frozen"):
            setattr(parameters, parameter, 1)


def test_is_registered_under_its_own_name(name: str) -> None:
    assert policy(name).name == name
