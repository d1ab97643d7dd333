"""Policies that keep equal keys together: sticky, bounded, steady as replicas come and go."""

from collections.abc import Sequence
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from pydantic import ValidationError
from xxhash import xxh3_64_intdigest

from router.core.load_totals import Load
from router.policies.base import Choice, Facts, Hints, Reason
from router.policies.prefix_hash import PrefixHash, PrefixHashParameters
from router.policies.session_affinity import SessionAffinity, SessionAffinityParameters

BLOCK_SIZE = 16
SESSIONS = 300
Fleet = dict[int, str]
"""Names by slot."""


def facts(fleet: Fleet, requests: Sequence[int] | None = None, **changes: object) -> Facts:
    slots = sorted(fleet)
    loads = np.zeros((len(Load), len(slots)))
    loads[Load.REQUESTS] = requests or 0
    keys = [xxh3_64_intdigest(fleet[slot].encode()) for slot in slots]
    depths = np.zeros((3, len(slots)), np.int32)
    return replace(
        Facts(np.array(slots), depths, depths[0], loads, 640, BLOCK_SIZE),
        replica_keys=np.array(keys, np.uint64),
        **changes,
    )


def names(*numbers: int) -> Fleet:
    """Replicas on slots of their own numbers."""
    return {number: f"replica-{number}" for number in numbers}


def by_session(session: str, fleet: Fleet, requests: Sequence[int] | None = None) -> Choice:
    hints = Hints(session_hint=session)
    policy = SessionAffinity(SessionAffinityParameters())
    return policy.choose(facts(fleet, requests, hints=hints), Random(0))


def homes(fleet: Fleet) -> list[str]:
    """Of every session on idle replicas, by name."""
    firsts = (by_session(f"talk-{number}", fleet).ranked.item(0) for number in range(SESSIONS))
    return [fleet[first] for first in firsts]


def test_sessions_spread_over_all_replicas() -> None:
    found = homes(names(1, 2, 3))
    assert all(70 < found.count(name) < 130 for name in names(1, 2, 3).values())


def test_where_a_session_goes_depends_on_names_not_on_slots() -> None:
    """So that a restarted index, which seats the replicas anew, moves nobody."""
    assert homes({0: "a", 1: "b", 2: "c"}) == homes({0: "c", 1: "a", 7: "b"})


@settings(deadline=None, max_examples=30)
@given(
    fleet=st.sets(st.integers(0, 50), min_size=2, max_size=12),
    gone=st.integers(0, 50),
    come=st.integers(51, 60),
)
def test_few_sessions_move_when_replicas_come_and_go(fleet: set[int], gone: int, come: int) -> None:
    """Only those of the replica that goes, and only to the one that comes."""
    before = homes(names(*fleet))
    smaller = homes(names(*(fleet - {gone}))) if fleet != {gone} else before
    for home, after in zip(before, smaller, strict=True):
        assert after == home or home == f"replica-{gone}"
    larger = homes(names(*fleet, come))
    moved = [after for home, after in zip(before, larger, strict=True) if after != home]
    assert set(moved) <= {f"replica-{come}"}
    assert len(moved) < 3 * SESSIONS / (len(fleet) + 1)


def test_a_full_replica_sends_its_sessions_to_the_next_of_their_order() -> None:
    fleet = names(1, 2, 3)
    calm = by_session("talk", fleet)
    home = calm.ranked.item(0)
    requests = [20 if slot == home else 1 for slot in sorted(fleet)]
    busy = by_session("talk", fleet, requests)
    assert busy.ranked.tolist() == [*calm.ranked.tolist()[1:], home]
    assert busy.reason is Reason.AFFINITY_OVERLOADED
    assert calm.reason is Reason.SESSION_AFFINITY


@settings(deadline=None)
@given(requests=st.lists(st.integers(0, 200), min_size=3, max_size=3), talk=st.text(max_size=5))
def test_nobody_gets_a_request_beyond_the_bound(requests: list[int], talk: str) -> None:
    """1.25 times the mean with this request, rounded up, and never below four."""
    choice = by_session(talk, names(1, 2, 3), requests)
    chosen = requests[choice.ranked.item(0) - 1]
    assert chosen < max(np.ceil(1.25 * (sum(requests) + 1) / 3), 4)


def test_a_few_requests_never_displace_a_session() -> None:
    fleet = names(*range(8))
    home = by_session("talk", fleet).ranked.item(0)
    requests = [3 if slot == home else 0 for slot in sorted(fleet)]
    assert by_session("talk", fleet, requests).ranked.item(0) == home


def test_without_a_bound_a_session_stays_whatever_the_load() -> None:
    fleet = names(1, 2)
    policy = SessionAffinity(SessionAffinityParameters(load_factor=None))
    asked = facts(fleet, [0, 0], hints=Hints(session_hint="talk"))
    home = policy.choose(asked, Random(0)).ranked.item(0)
    busy = [1000 if slot == home else 0 for slot in sorted(fleet)]
    asked = facts(fleet, busy, hints=Hints(session_hint="talk"))
    assert policy.choose(asked, Random(0)).ranked.item(0) == home


def test_a_request_without_a_session_goes_to_the_least_loaded() -> None:
    policy = SessionAffinity(SessionAffinityParameters())
    choice = policy.choose(facts(names(1, 2, 3), [2, 0, 1]), Random(0))
    assert choice.ranked.tolist() == [2, 3, 1]
    assert choice.reason is Reason.LEAST_LOADED


def place(prompt: Sequence[int], parameters: PrefixHashParameters) -> int:
    hashes = np.cumsum(np.array(prompt, np.uint64) * np.uint64(0x9E3779B97F4A7C15))
    asked = facts(names(*range(16)), hashes=hashes)
    return int(PrefixHash(parameters).choose(asked, Random(0)).ranked[0])


@settings(deadline=None)
@given(
    tails=st.lists(st.lists(st.integers(1, 9), max_size=9), min_size=2, max_size=2),
    boundary=st.integers(1, 6),
)
def test_prompts_with_an_equal_start_go_to_one_replica(
    tails: list[list[int]], boundary: int
) -> None:
    parameters = PrefixHashParameters(boundary_blocks=boundary)
    shared = [7] * boundary
    assert place(shared + tails[0], parameters) == place(shared + tails[1], parameters)


def test_prompts_that_part_before_the_boundary_spread() -> None:
    parameters = PrefixHashParameters(boundary_blocks=2)
    assert len({place([1, number, 5, 5], parameters) for number in range(100)}) > 10


def test_a_boundary_in_tokens_is_rounded_down_to_blocks() -> None:
    parameters = PrefixHashParameters(boundary_tokens=2 * BLOCK_SIZE + 5)
    assert parameters.blocks(BLOCK_SIZE) == 2
    assert PrefixHashParameters(boundary_tokens=3).blocks(BLOCK_SIZE) == 1
    assert PrefixHashParameters().blocks(BLOCK_SIZE) == 32


def test_two_boundaries_are_refused() -> None:
    with pytest.raises(ValidationError, match="exclude each other"):
        PrefixHashParameters(boundary_tokens=64, boundary_blocks=4)


def test_a_prompt_without_a_full_block_goes_by_load() -> None:
    policy = PrefixHash(PrefixHashParameters())
    choice = policy.choose(facts(names(1, 2, 3), [2, 0, 1]), Random(0))
    assert choice.ranked.tolist() == [2, 3, 1]
