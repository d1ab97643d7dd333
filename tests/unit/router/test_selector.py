"""The selector: lookup, choice, booking and speculation as one step over index and ledger."""

import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random

import numpy as np
import pytest
from msgspec.structs import replace
from numpy.typing import NDArray

from router.core.events import NO_PARENT, EventBatch, StoredRun
from router.core.index import BlockIndex
from router.core.ledger import LoadLedger
from router.core.types import BookingId, Incarnation, ReplicaId, Slot, Tenant, Tier
from router.decision import Decision, Outcome, Rejection, RejectionCause, SelectRequest
from router.policies.base import Reason
from router.policies.registry import PolicySpec
from router.selector import Selector

MAX_REPLICAS = 8
BLOCK_SIZE = 16
STALE_AFTER_S = 5.0
ROUND_ROBIN = PolicySpec("round_robin")
LONG = range(200, 400)
"""A chain long enough that waiting for it beats computing it again."""


@dataclass(frozen=True)
class NaiveOverlap:
    tiers: NDArray[np.int32]
    speculative: NDArray[np.int32]


class NaiveIndex:
    """Prefix lookup by sets of hashes, one a replica: the index's contract without its speed."""

    def __init__(self) -> None:
        self.held: list[set[int]] = [set() for _ in range(MAX_REPLICAS)]
        self.promised: dict[BookingId, tuple[Slot, set[int], float]] = {}
        self.slots: dict[ReplicaId, Slot] = {}

    def register(self, replica_id: ReplicaId, incarnation: Incarnation) -> Slot:
        return self.slots.setdefault(replica_id, Slot(len(self.slots)))

    def hold(self, replica_id: ReplicaId, blocks: Sequence[int]) -> None:
        """The replica's events arrive."""
        self.held[self.slots[replica_id]].update(blocks)

    def promised_bookings(self) -> int:
        return len(self.promised)

    def overlaps(self, hashes: NDArray[np.uint64]) -> NaiveOverlap:
        depths = [self._depth(hashes, self.held[slot]) for slot in range(MAX_REPLICAS)]
        promised = [
            self._depth(hashes, self.held[slot] | self._promised(slot))
            for slot in range(MAX_REPLICAS)
        ]
        confirmed = np.array(depths, dtype=np.int32)
        return NaiveOverlap(np.stack([confirmed] * 3), np.array(promised, dtype=np.int32))

    def stored(self, hashes: NDArray[np.uint64]) -> tuple[()]:
        return ()

    def speculate(
        self, booking_id: BookingId, slot: Slot, hashes: NDArray[np.uint64], expires_at: float
    ) -> None:
        self.promised[booking_id] = (slot, set(hashes.tolist()), expires_at)

    expect = speculate

    def retract(self, booking_id: BookingId) -> None:
        self.promised.pop(booking_id, None)

    def sweep(self, now: float) -> None:
        self.promised = {key: entry for key, entry in self.promised.items() if entry[2] > now}

    def forget(self, replica_id: ReplicaId) -> None:
        self.held[self.slots.pop(replica_id)].clear()

    def applied_seq(self, replica_id: ReplicaId) -> None:
        """Nothing here comes in batches."""

    def _promised(self, slot: int) -> set[int]:
        return {h for owner, hashes, _ in self.promised.values() if owner == slot for h in hashes}

    @staticmethod
    def _depth(hashes: NDArray[np.uint64], held: set[int]) -> int:
        for depth, block in enumerate(hashes.tolist()):
            if block not in held:
                return depth
        return len(hashes)


class RealIndex(BlockIndex):
    """The block index itself, told what replicas hold through their events."""

    def __init__(self) -> None:
        super().__init__(max_blocks=65_536, max_replicas=MAX_REPLICAS)
        self._seqs: Counter[ReplicaId] = Counter()

    def hold(self, replica_id: ReplicaId, blocks: Sequence[int]) -> None:
        run = StoredRun(Tier.GPU, NO_PARENT, np.array(blocks, dtype=np.uint64))
        self.apply(EventBatch(replica_id, Incarnation(1), self._seqs[replica_id], (run,)))
        self._seqs[replica_id] += 1

    def promised_bookings(self) -> int:
        return self.stats().bookings


@dataclass(frozen=True)
class NaiveLease:
    replica_id: ReplicaId
    slot: Slot


@dataclass
class NaiveMembers:
    renewed_at: dict[ReplicaId, float] = field(default_factory=dict)
    slots: dict[ReplicaId, Slot] = field(default_factory=dict)
    version: int = 0

    def add(self, replica_id: ReplicaId, slot: Slot, now: float) -> None:
        self.slots[replica_id] = slot
        self.renewed_at[replica_id] = now
        self.version += 1

    def remove(self, replica_id: ReplicaId) -> None:
        del self.slots[replica_id], self.renewed_at[replica_id]
        self.version += 1

    def leases(self) -> list[NaiveLease]:
        return [NaiveLease(replica_id, slot) for replica_id, slot in self.slots.items()]

    def fresh(self, now: float) -> NDArray[np.bool_]:
        is_fresh = np.zeros(MAX_REPLICAS, dtype=np.bool_)
        for replica_id, slot in self.slots.items():
            is_fresh[slot] = now - self.renewed_at[replica_id] < STALE_AFTER_S
        return is_fresh


class World:
    """A selector with replicas R0, R1, … and booking ids that count up."""

    def __init__(
        self,
        index: NaiveIndex | RealIndex,
        replicas: int,
        *,
        max_bookings: int = 1000,
        **settings: int,
    ) -> None:
        self.index = index
        self.ledger = LoadLedger(MAX_REPLICAS, max_bookings)
        self.members = NaiveMembers()
        self.selector = Selector(self.index, self.ledger, self.members, Random(0), **settings)
        self._bookings = 0
        for _ in range(replicas):
            self.add_replica()

    def add_replica(self, now: float = 0.0) -> None:
        replica_id = ReplicaId(f"R{len(self.members.slots)}")
        self.members.add(replica_id, self.index.register(replica_id, Incarnation(1)), now)

    def slot(self, replica_id: str) -> Slot:
        return self.members.slots[ReplicaId(replica_id)]

    def hold(self, replica_id: str, *blocks: int) -> None:
        self.index.hold(ReplicaId(replica_id), blocks)

    def request(self, *blocks: int, extra_tokens: int = 5, **changes: object) -> SelectRequest:
        self._bookings += 1
        request = SelectRequest(
            booking_id=BookingId(self._bookings),
            tenant=Tenant("t"),
            hashes=np.array(blocks, dtype=np.uint64),
            prompt_tokens=len(blocks) * BLOCK_SIZE + extra_tokens,
            block_size=BLOCK_SIZE,
            expires_at=1e9,
            lease_s=60.0,
        )
        return replace(request, **changes)

    def select(self, request: SelectRequest, now: float = 0.0) -> Decision:
        (outcome,) = self.selector.select([request], now)
        assert isinstance(outcome, Decision), outcome
        return outcome

    def finish(self, decision: Decision, blocks: Sequence[int]) -> None:
        """The engine computes and keeps the blocks, its events arrive, the request ends."""
        self.index.hold(decision.replica_id, blocks)
        self.selector.settle(decision.booking_id)


NewWorld = Callable[..., World]


def decisions(outcomes: Sequence[Outcome]) -> list[Decision]:
    made = [outcome for outcome in outcomes if isinstance(outcome, Decision)]
    assert len(made) == len(outcomes)
    return made


@pytest.fixture(params=[NaiveIndex, RealIndex])
def new_world(request: pytest.FixtureRequest) -> NewWorld:
    """Worlds over a naive index and over the real one: the selector is to notice no difference."""
    return lambda replicas, **settings: World(request.param(), replicas, **settings)


def test_a_repeated_prompt_goes_where_its_blocks_are(new_world: NewWorld) -> None:
    world = new_world(4)
    first = world.select(world.request(1, 2, 3, 4))
    world.finish(first, [1, 2, 3, 4])
    second = world.select(world.request(1, 2, 3, 4, 5))
    assert second.replica_id == first.replica_id
    assert (second.overlap_blocks, second.speculative_blocks) == (4, 4)
    assert second.reason is Reason.KV_OVERLAP


def test_a_minimum_overlap_does_not_keep_affinity_from_starting(new_world: NewWorld) -> None:
    """The second of two equal prompts is forecast on the first's replica, on every policy path."""
    world = new_world(4)
    policy = PolicySpec("kv_aware", '{"min_overlap_blocks": 2, "min_prompt_blocks": 2}')
    first = world.select(world.request(1, 2, 3, 4, 5, 6, policy=policy))
    world.finish(first, [1, 2, 3, 4, 5, 6])
    second = world.select(world.request(1, 2, 3, 4, 5, 6, policy=policy))
    assert second.replica_id == first.replica_id
    assert second.forecast_blocks == 6


def test_blocks_on_their_way_are_reported_apart_from_confirmed_ones(new_world: NewWorld) -> None:
    world = new_world(4)
    first = world.select(world.request(*LONG))
    second = world.select(world.request(*LONG))
    assert second.replica_id == first.replica_id
    assert (second.overlap_blocks, second.speculative_blocks) == (0, len(LONG))
    assert second.forecast_blocks == 0
    assert second.reason is Reason.SPECULATIVE_OVERLAP


def test_the_booking_counts_only_what_will_be_computed(new_world: NewWorld) -> None:
    world = new_world(1)
    world.hold("R0", 1, 2)
    decision = world.select(world.request(1, 2, 3, extra_tokens=7))
    assert decision.uncached_tokens == BLOCK_SIZE + 7
    assert world.ledger.prefill_tokens[0] == BLOCK_SIZE + 7
    assert world.ledger.decode_blocks[0] == 4


def test_the_last_token_is_never_forecast_as_cached(new_world: NewWorld) -> None:
    world = new_world(1)
    world.hold("R0", 1, 2, 3)
    decision = world.select(world.request(1, 2, 3, extra_tokens=0))
    assert decision.overlap_blocks == 3
    assert decision.forecast_blocks == 2
    assert decision.uncached_tokens == BLOCK_SIZE


def test_a_request_that_reads_no_cache_has_no_forecast_and_no_pull(new_world: NewWorld) -> None:
    world = new_world(2)
    world.hold("R1", 1, 2, 3)
    decision = world.select(world.request(1, 2, 3, reads_cache=False))
    assert decision.forecast_blocks == 0
    assert decision.uncached_tokens == 3 * BLOCK_SIZE + 5
    assert decision.reason is Reason.NO_OVERLAP


def test_later_requests_of_a_batch_see_the_load_of_earlier_ones(new_world: NewWorld) -> None:
    world = new_world(4)
    batch = [world.request(10 * i, 10 * i + 1) for i in range(8)]
    chosen = Counter(d.replica_id for d in decisions(world.selector.select(batch, now=0.0)))
    assert set(chosen.values()) == {2}


def test_later_requests_of_a_batch_see_the_blocks_of_earlier_ones(new_world: NewWorld) -> None:
    world = new_world(4)
    batch = [world.request(*LONG), world.request(*LONG, 500), world.request(7, 8)]
    first, second, _ = decisions(world.selector.select(batch, now=0.0))
    assert second.replica_id == first.replica_id
    assert second.speculative_blocks == len(LONG)


def test_the_same_booking_again_gets_the_same_decision_and_books_once(new_world: NewWorld) -> None:
    world = new_world(4)
    request = world.request(1, 2, 3)
    first = world.select(request)
    assert world.select(request) == first
    assert decisions(world.selector.select([request, request], now=0.0)) == [first, first]
    assert len(world.ledger) == 1
    assert world.selector.counters.repeated == 3


def test_a_booking_twice_in_one_batch_books_once(new_world: NewWorld) -> None:
    world = new_world(4)
    request = world.request(1, 2, 3)
    first, second = world.selector.select([request, request], now=0.0)
    assert first == second
    assert len(world.ledger) == 1


def test_a_booking_that_outlived_its_remembered_decision_is_never_counted_twice(
    new_world: NewWorld,
) -> None:
    world = new_world(4, max_decisions=2)
    request = world.request(1, 2, 3)
    first = world.select(request)
    for root in (10, 20, 30):
        world.select(world.request(root))
    again = world.select(replace(request, excluded=(first.replica_id,)))
    assert again.replica_id != first.replica_id
    assert len(world.ledger) == 4
    booked = world.ledger.get(request.booking_id)
    assert booked is not None and booked.slot == world.slot(again.replica_id)


def test_a_call_whose_deadline_has_passed_books_nothing(new_world: NewWorld) -> None:
    world = new_world(2)
    late = world.request(1, 2, expires_at=5.0)
    assert world.selector.select([late], now=5.0) == [
        Rejection(late.booking_id, RejectionCause.EXPIRED)
    ]
    assert len(world.ledger) == 0
    assert world.index.promised_bookings() == 0
    assert world.selector.counters.expired == 1


def test_without_replicas_there_is_no_decision_and_no_booking(new_world: NewWorld) -> None:
    world = new_world(0)
    request = world.request(1)
    assert world.selector.select([request], now=0.0) == [
        Rejection(request.booking_id, RejectionCause.NO_REPLICA)
    ]
    assert len(world.ledger) == 0


def test_one_impossible_request_does_not_fail_its_batch(new_world: NewWorld) -> None:
    world = new_world(2)
    wrong = world.request(1, policy=PolicySpec("kv_awear"))
    outcomes = world.selector.select([wrong, world.request(2)], now=0.0)
    assert outcomes[0] == Rejection(wrong.booking_id, RejectionCause.INVALID_POLICY)
    assert isinstance(outcomes[1], Decision)


def test_excluded_replicas_and_those_outside_the_request_are_no_candidates(
    new_world: NewWorld,
) -> None:
    world = new_world(4)
    world.hold("R0", 1, 2, 3)
    members = (ReplicaId("R0"), ReplicaId("R2"), ReplicaId("R9"))
    request = world.request(
        1, 2, 3, candidates=members, excluded=(ReplicaId("R0"), ReplicaId("R7"))
    )
    decision = world.select(request)
    assert decision.ranked == (ReplicaId("R2"),)
    assert decision.reason is Reason.ONLY_CANDIDATE


def test_a_replica_with_a_lapsed_lease_is_no_candidate_and_its_idleness_no_argument(
    new_world: NewWorld,
) -> None:
    """Loads 5, 5 and 0 on a replica that went silent: affinity with R1 stays."""
    world = new_world(2)
    world.hold("R1", 1, 2, 3, 4)
    for slot, replica_id in enumerate((ReplicaId("R0"), ReplicaId("R1"))):
        for i in range(5):
            only = world.request(100 * slot + i + 50, candidates=(replica_id,))
            world.select(only, now=0.0)
    world.add_replica(now=-STALE_AFTER_S)
    decision = world.select(world.request(1, 2, 3, 4), now=0.0)
    assert decision.replica_id == "R1"
    assert "R2" not in decision.ranked


def test_a_lease_that_lapses_and_comes_back_between_calls_is_noticed_by_each(
    new_world: NewWorld,
) -> None:
    """With and without an exclusion that was asked for before."""
    world = new_world(3)
    seen = []
    for now, renewed in ((0.0, ()), (6.0, ("R0", "R1")), (7.0, ("R2",))):
        for name in renewed:
            world.members.renewed_at[ReplicaId(name)] = now
        anywhere = world.select(world.request(1), now)
        elsewhere = world.select(world.request(1, excluded=(ReplicaId("R0"),)), now)
        seen.append((sorted(anywhere.ranked), sorted(elsewhere.ranked)))
    everyone = (["R0", "R1", "R2"], ["R1", "R2"])
    assert seen == [everyone, (["R0", "R1"], ["R1"]), everyone]


def test_a_renewed_lease_leaves_the_load_as_it_is(new_world: NewWorld) -> None:
    """A health probe or a repeated registration is no new life: ten in flight stay ten."""
    world = new_world(1)
    for i in range(10):
        world.select(world.request(i), now=0.0)
    world.members.renewed_at[ReplicaId("R0")] = 3.0
    world.members.version += 1
    world.select(world.request(99, booking_id=BookingId(1)), now=3.0)
    assert world.ledger.requests[0] == 10


def test_ranked_alternatives_start_with_the_chosen_and_are_cut(new_world: NewWorld) -> None:
    world = new_world(8, max_alternatives=3)
    decision = world.select(world.request(1))
    assert len(decision.ranked) == len(set(decision.ranked)) == 3
    assert decision.ranked[0] == decision.replica_id


def test_round_robin_counts_its_own_turns_only(new_world: NewWorld) -> None:
    world = new_world(2)
    chosen = []
    for i in range(4):
        chosen.append(world.select(world.request(i, policy=ROUND_ROBIN)).replica_id)
        world.select(world.request(50 + i))
    assert chosen == ["R0", "R1", "R0", "R1"]


def test_a_first_token_keeps_the_request_but_ends_its_prefill(new_world: NewWorld) -> None:
    world = new_world(1)
    decision = world.select(world.request(1, 2))
    assert world.selector.first_token(decision.booking_id, now=1.0)
    assert world.ledger.loads[:, 0].tolist() == [0, 3, 1]
    assert world.selector.progress(decision.booking_id, 20, now=2.0)
    assert world.ledger.loads[:, 0].tolist() == [0, 4, 1]


def test_settling_releases_load_and_speculation(new_world: NewWorld) -> None:
    world = new_world(2)
    decision = world.select(world.request(1, 2))
    settled = world.selector.settle(decision.booking_id)
    assert settled is not None and settled.uncached_tokens == decision.uncached_tokens
    assert not world.ledger.loads.any()
    assert world.index.promised_bookings() == 0
    assert world.selector.settle(decision.booking_id) is None


def test_a_request_that_another_replica_took_leaves_nothing_on_the_first(
    new_world: NewWorld,
) -> None:
    world = new_world(2)
    request = world.request(*LONG)
    decision = world.select(request)
    other = next(name for name in decision.ranked if name != decision.replica_id)
    assert world.selector.move(decision.booking_id, other, now=0.0, hashes=request.hashes)
    assert world.ledger.requests[world.slot(decision.replica_id)] == 0
    again = world.select(world.request(*LONG))
    assert (again.replica_id, again.speculative_blocks) == (other, len(LONG))


def test_a_move_without_hashes_withdraws_what_will_not_come_true(new_world: NewWorld) -> None:
    world = new_world(2)
    decision = world.select(world.request(1, 2))
    other = next(name for name in decision.ranked if name != decision.replica_id)
    world.selector.move(decision.booking_id, other, now=0.0)
    assert world.index.promised_bookings() == 0


def test_a_move_to_an_unknown_replica_changes_nothing(new_world: NewWorld) -> None:
    world = new_world(1)
    decision = world.select(world.request(1, 2))
    assert not world.selector.move(decision.booking_id, ReplicaId("gone"), now=0.0)
    assert world.ledger.requests[0] == 1
    assert world.index.promised_bookings() == 1


def test_what_a_vanished_caller_booked_lapses_by_the_timer_alone(new_world: NewWorld) -> None:
    world = new_world(4)
    for i in range(200):
        world.select(world.request(i, lease_s=5.0), now=0.0)
    assert world.selector.sweep(now=4.0) == []
    assert len(world.selector.sweep(now=5.0)) == 200
    assert not world.ledger.loads.any()
    assert world.index.promised_bookings() == 0


def test_speculation_ends_by_its_own_time_where_no_event_confirms_it(new_world: NewWorld) -> None:
    world = new_world(1)
    decision = world.select(world.request(1, 2, lease_s=1000.0), now=0.0)
    world.selector.sweep(now=29.0)
    assert world.index.promised_bookings() == 1
    world.selector.sweep(now=30.0)
    assert world.index.promised_bookings() == 0
    assert decision.booking_id in world.ledger


def test_a_booking_displaced_at_the_cap_takes_its_speculation_along(new_world: NewWorld) -> None:
    world = new_world(2, max_bookings=2)
    for root in (1, 2, 3):
        world.select(world.request(root))
    assert len(world.ledger) == 2
    assert world.index.promised_bookings() == 2


def test_a_forgotten_replica_takes_blocks_bookings_and_speculation_along(
    new_world: NewWorld,
) -> None:
    world = new_world(1)
    world.hold("R0", 1)
    decision = world.select(world.request(1, 2))
    forgotten = world.selector.forget(decision.replica_id, Slot(0))
    assert [booking.booking_id for booking in forgotten] == [decision.booking_id]
    assert not world.ledger.loads.any()
    assert world.index.promised_bookings() == 0
    assert not world.index.overlaps(np.array([1, 2], dtype=np.uint64)).tiers.any()


def test_a_request_whose_replica_is_gone_is_decided_afresh_when_asked_again(
    new_world: NewWorld,
) -> None:
    world = new_world(2)
    request = world.request(1, 2)
    gone = world.select(request).replica_id
    world.selector.forget(gone, world.slot(gone))
    world.members.remove(gone)
    assert world.select(request).replica_id != gone
    assert len(world.ledger) == 1


def test_policies_that_nobody_asks_for_any_more_are_dropped(new_world: NewWorld) -> None:
    """Seen from the outside: a dropped round robin begins again."""
    world = new_world(3, max_policies=1)
    chosen = []
    for _ in range(2):
        chosen.append(world.select(world.request(1, policy=ROUND_ROBIN)).replica_id)
        world.select(world.request(2))
    assert chosen == ["R0", "R0"]


def test_an_explanation_shows_every_candidate_as_the_policy_saw_it(new_world: NewWorld) -> None:
    world = new_world(3)
    world.hold("R1", 1, 2)
    busy = world.select(world.request(9, candidates=(ReplicaId("R0"),)))
    decision = world.select(world.request(1, 2, 3))
    explanation = world.selector.explain(decision.booking_id)
    assert explanation is not None
    assert explanation.decision == decision
    views = {view.replica_id: view for view in explanation.candidates}
    assert [view.replica_id for view in explanation.candidates][0] == decision.replica_id == "R1"
    assert views[ReplicaId("R1")].overlap_blocks == explanation.diverges_at == 2
    assert views[ReplicaId("R0")].requests == 1
    assert views[ReplicaId("R0")].prefill_tokens == busy.uncached_tokens
    assert views[ReplicaId("R2")].cost < views[ReplicaId("R0")].cost
    assert world.selector.explain(BookingId(999)) is None


@pytest.mark.parametrize("batch_size", [1, 50])
def test_a_burst_with_one_prefix_is_spread_but_not_recomputed_by_every_sibling(
    new_world: NewWorld, batch_size: int
) -> None:
    """100 simultaneous cold requests in two streams on 4 replicas, one long shared prefix."""
    world = new_world(4)
    shared = list(range(1, 65))
    burst = [world.request(*shared, 1000 + i) for i in range(100)]
    made: list[Decision] = []
    for start in range(0, 100, batch_size):
        made += decisions(world.selector.select(burst[start : start + batch_size], now=0.0))
    loads = Counter(decision.replica_id for decision in made)
    assert max(loads.values()) <= 2 * 100 / 4
    cold = sum(decision.speculative_blocks == 0 for decision in made)
    assert 1 <= cold <= 4


def run_stream(world: World, requests: int, in_flight: int) -> Counter[ReplicaId]:
    """Prompts of one universal system block and a tail of their own, `in_flight` at a time."""
    running: list[tuple[Decision, list[int]]] = []
    loads: Counter[ReplicaId] = Counter()
    for i in range(requests):
        blocks = [1, *range(1000 + 20 * i, 1015 + 20 * i)]
        decision = world.select(world.request(*blocks))
        loads[decision.replica_id] += 1
        running.append((decision, blocks))
        if len(running) >= in_flight:
            world.finish(*running.pop(0))
    for decision, blocks in running:
        world.finish(decision, blocks)
    return loads


@pytest.mark.parametrize("in_flight", [1, 2, 16])
def test_a_universal_system_block_does_not_pull_all_traffic_to_one_replica(
    new_world: NewWorld, in_flight: int
) -> None:
    loads = run_stream(new_world(4), 400, in_flight)
    assert max(loads.values()) <= 1.5 * 400 / 4, loads


def test_a_replica_that_joins_gets_its_share_of_a_shared_system_prompt(new_world: NewWorld) -> None:
    world = new_world(4)
    run_stream(world, 200, in_flight=16)
    world.add_replica()
    loads = run_stream(world, 100, in_flight=16)
    assert loads[ReplicaId("R4")] >= 0.5 * 100 / 5, loads


def test_prompts_of_one_request_go_to_one_replica_each_with_its_own_overlap(
    new_world: NewWorld,
) -> None:
    world = new_world(4)
    world.hold("R2", *LONG)
    world.hold("R2", 7)
    decision = world.select(world.request(7, 8, *LONG, 9, chains=(2, len(LONG), 0, 1)))
    assert decision.replica_id == "R2"
    assert decision.chain_overlaps == (1, len(LONG), 0, 0)
    assert decision.overlap_blocks == 1 + len(LONG)
    assert decision.uncached_tokens == 2 * BLOCK_SIZE + 5


def test_a_decision_says_which_batch_of_its_replica_it_could_know() -> None:
    world = World(RealIndex(), 1)
    assert world.select(world.request(1, 2)).decided_seq is None
    world.hold("R0", 1)
    world.hold("R0", 2)
    assert world.select(world.request(1, 2)).decided_seq == 1


APPROXIMATE = PolicySpec("approximate", '{"ttl_s": 60.0}')


def test_a_policy_without_events_remembers_where_it_sent_what(new_world: NewWorld) -> None:
    """Also while nothing of it has come true, and with the memory alone booked as held."""
    world = new_world(4)
    first = world.select(world.request(*LONG, policy=APPROXIMATE))
    world.selector.settle(first.booking_id)
    second = world.select(world.request(*LONG, 1, policy=APPROXIMATE), now=4.0)
    assert second.replica_id == first.replica_id
    assert second.reason is Reason.HISTORY_OVERLAP
    assert second.overlap_blocks == 0
    assert second.uncached_tokens == BLOCK_SIZE + 5


def test_what_another_policy_sent_is_not_in_the_memory(new_world: NewWorld) -> None:
    world = new_world(4)
    world.select(world.request(*LONG, policy=ROUND_ROBIN))
    outcome = world.select(world.request(*LONG, policy=APPROXIMATE))
    assert outcome.reason is not Reason.HISTORY_OVERLAP


def test_a_replica_that_is_gone_leaves_the_memory(new_world: NewWorld) -> None:
    world = new_world(1)
    first = world.select(world.request(*LONG, policy=APPROXIMATE))
    world.selector.forget(first.replica_id, world.slot("R0"))
    world.index.register(first.replica_id, Incarnation(2))
    again = world.select(world.request(*LONG, policy=APPROXIMATE))
    assert again.uncached_tokens == len(LONG) * BLOCK_SIZE + 5


def test_explanations_do_not_keep_prompts_alive(new_world: NewWorld) -> None:
    """A chain is often a view of a whole message."""
    world = new_world(2)
    request = world.request(*LONG)
    watch = weakref.ref(request.hashes)
    world.select(request)
    del request
    assert watch() is None
