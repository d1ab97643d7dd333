"""Decisions over stored blocks: what is loaded where, what is forecast, and what it takes."""

from collections.abc import Sequence
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.events import NO_PARENT, EventBatch
from router.core.events import StoredRun as HeldRun
from router.core.index import BlockIndex
from router.core.ledger import LoadLedger
from router.core.store_access import LoadLine
from router.core.store_directory import StoredPiece
from router.core.types import BookingId, Incarnation, ReplicaId, StoreId, Tenant, Tier
from router.decision import Decision, SelectRequest
from router.loads import reaches
from router.policies.base import Reason
from router.policies.registry import PolicySpec
from router.selector import Selector
from router.serve.leases import Lease as ReplicaLease
from router.serve.leases import ReplicaLeases

BLOCK_SIZE, OBJECT_BLOCKS = 16, 4
CHAIN = np.arange(1, 41, dtype=np.uint64)
NEAR, FAR = StoreId("near"), StoreId("far")
CHEAP = LoadLine(fixed_ms=1.0, ms_per_block=0.1, compute_ms_per_block=4.0)
"""Breaks even below one block."""
SLOW = LoadLine(fixed_ms=20.0, ms_per_block=1.0, compute_ms_per_block=3.0)
"""Breaks even at 10 blocks."""


class World:
    """Replicas r0, r1, … over one index; each is near the store NEAR."""

    def __init__(self, *lines: LoadLine | None, has_store: bool = True) -> None:
        self.index = BlockIndex(65_536, 8)
        self.ledger = LoadLedger(8)
        leases = ReplicaLeases(8, 5.0, 30.0)
        self.selector = Selector(self.index, self.ledger, leases, Random(0))
        self._bookings = 0
        for number, line in enumerate(lines):
            replica_id, life = ReplicaId(f"r{number}"), Incarnation(1)
            slot = self.index.register(replica_id, life)
            leases.add(ReplicaLease(replica_id, life, slot), 0.0)
            if has_store:
                self.ledger.stores.set(slot, NEAR, line)

    def hold(self, replica: int, blocks: int) -> None:
        run = HeldRun(Tier.GPU, NO_PARENT, CHAIN[:blocks])
        self.index.apply(EventBatch(ReplicaId(f"r{replica}"), Incarnation(1), 0, (run,)))

    def keep(self, *objects: int, store: StoreId = NEAR) -> None:
        """The objects of the chain with these numbers are stored."""
        for number in objects:
            first = number * OBJECT_BLOCKS
            hashes = CHAIN[first : first + OBJECT_BLOCKS]
            self.index.add_stored(hashes, store, b"%s-%d" % (store.encode(), number))

    def decide(
        self, blocks: int = 40, extra_tokens: int = 5, *, stays: bool = False, **changes: object
    ) -> Decision:
        """The request ends at once unless it `stays`, and leaves nothing."""
        self._bookings += 1
        fields: dict[str, object] = {
            "booking_id": BookingId(self._bookings),
            "tenant": Tenant("t"),
            "hashes": CHAIN[:blocks],
            "prompt_tokens": blocks * BLOCK_SIZE + extra_tokens,
            "block_size": BLOCK_SIZE,
            "expires_at": 1e9,
            "lease_s": 60.0,
        }
        (outcome,) = self.selector.select([SelectRequest(**(fields | changes))], 0.0)
        assert isinstance(outcome, Decision)
        if not stays:
            self.selector.settle(outcome.booking_id)
        return outcome


def places(decision: Decision) -> list[int]:
    return [run.first_block for run in decision.loads]


def test_stored_blocks_after_the_held_ones_are_named_and_forecast() -> None:
    world = World(CHEAP)
    world.hold(0, 6)
    world.keep(1, 2, 3)
    decision = world.decide()
    assert places(decision) == [4, 8, 12]
    assert {run.blocks for run in decision.loads} == {OBJECT_BLOCKS}
    assert (decision.overlap_blocks, decision.load_blocks, decision.forecast_blocks) == (6, 10, 16)
    assert decision.uncached_tokens == 24 * BLOCK_SIZE + 5
    assert decision.reason is Reason.KV_LOAD


def test_a_gap_that_the_replica_holds_itself_hides_nothing() -> None:
    world = World(CHEAP, CHEAP)
    world.hold(0, 8)
    world.keep(0, 2)
    decision = world.decide()
    assert (decision.replica_id, places(decision), decision.forecast_blocks) == ("r0", [8], 12)
    (other,) = [view for view in views(world, decision) if view.replica_id == "r1"]
    assert other.load_blocks == 4


def views(world: World, decision: Decision) -> Sequence:
    explanation = world.selector.explain(decision.booking_id)
    assert explanation is not None
    return explanation.candidates


def test_an_object_of_the_own_node_is_taken_before_another_s() -> None:
    world = World(CHEAP)
    world.keep(0, 1, store=FAR)
    world.keep(1)
    assert [(run.store_id, run.key) for run in world.decide().loads] == [
        (FAR, b"far-0"),
        (NEAR, b"near-1"),
    ]


@pytest.mark.parametrize("extra_tokens", [0, 1])
def test_the_block_of_the_last_token_is_not_loaded(extra_tokens: int) -> None:
    world = World(CHEAP)
    world.keep(*range(10))
    decision = world.decide(extra_tokens=extra_tokens)
    assert decision.forecast_blocks == decision.load_blocks == 39 + extra_tokens
    assert len(decision.loads) == 10


def test_what_is_measured_to_be_dearer_is_computed() -> None:
    world = World(SLOW)
    world.keep(0, 1)
    decision = world.decide()
    assert (decision.loads, decision.forecast_blocks) == ((), 0)
    assert decision.uncached_tokens == 40 * BLOCK_SIZE + 5
    (view,) = views(world, decision)
    assert (view.load_blocks, view.load_share) == (0, 3.5 / 3.0)
    world.keep(2)
    assert world.decide().load_blocks == 12


def test_what_is_not_measured_is_tried() -> None:
    world = World(None)
    world.keep(0)
    decision = world.decide()
    assert decision.load_blocks == 4
    assert views(world, decision)[0].load_share is None


def test_a_replica_that_loads_cheaply_is_chosen_over_one_that_computes() -> None:
    world = World(SLOW, CHEAP)
    world.keep(0, 1)
    assert {world.decide().replica_id for _ in range(2)} == {"r1"}


def test_what_a_request_on_its_way_will_leave_is_not_worth_a_load() -> None:
    world = World(CHEAP)
    world.decide(stays=True)
    world.keep(*range(10))
    decision = world.decide()
    assert (decision.loads, decision.speculative_blocks) == ((), 40)


def test_a_load_reaches_past_what_is_on_its_way() -> None:
    world = World(CHEAP)
    world.decide(blocks=8, stays=True)
    world.keep(*range(10))
    decision = world.decide()
    assert (len(decision.loads), decision.forecast_blocks) == (10, 40)


def test_any_policy_s_choice_loads() -> None:
    world = World(CHEAP)
    world.keep(0)
    decision = world.decide(policy=PolicySpec("round_robin"))
    assert (decision.load_blocks, decision.reason) == (4, Reason.KV_LOAD)


@pytest.mark.parametrize("changes", [{"reads_cache": False}, {"chains": (20, 20)}])
def test_lists_of_prompts_and_who_reads_no_cache_load_nothing(changes: dict[str, object]) -> None:
    world = World(CHEAP)
    world.keep(0)
    assert world.decide(**changes).loads == ()


def test_nothing_is_offered_to_replicas_without_a_store() -> None:
    world = World(None, has_store=False)
    world.keep(0)
    decision = world.decide()
    assert (decision.loads, decision.seen_blocks) == ((), 0)


def test_a_prompt_was_seen_as_far_as_anybody_holds_or_stores_it() -> None:
    world = World(CHEAP, CHEAP)
    assert world.decide().seen_blocks == 0
    world.hold(1, 7)
    assert world.decide().seen_blocks == 7
    world.keep(3)
    assert world.decide().seen_blocks == 16


def test_a_prefill_with_a_load_teaches_no_rate() -> None:
    world = World(CHEAP)
    world.keep(0)
    decision = world.decide(stays=True)
    world.selector.first_token(decision.booking_id, 5.0)
    world.selector.settle(decision.booking_id)
    for blocks in range(20, 40):
        decision = world.decide(blocks, stays=True, hashes=CHAIN[:0])
        world.selector.first_token(decision.booking_id, blocks / 1000)
        world.selector.settle(decision.booking_id)
    assert 0 < world.ledger.rates.prefill.fleet.learned < 1


@given(st.sets(st.integers(0, 9)), st.lists(st.integers(0, 40), min_size=1, max_size=8))
def test_reach_is_that_of_a_walk(objects: set[int], depths: list[int]) -> None:
    pieces = [StoredPiece(4 * number, 4, {}) for number in sorted(objects)]
    stored = {4 * number + place for number in objects for place in range(4)}

    def walked(depth: int) -> int:
        while depth in stored:
            depth += 1
        return depth

    assert reaches(pieces, np.array(depths, np.int32), 40).tolist() == list(map(walked, depths))
