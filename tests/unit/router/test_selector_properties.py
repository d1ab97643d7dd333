"""Any order of selections, news and losses leaves index and ledger sound, and at last empty."""

from random import Random

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from router.core.events import NO_PARENT, EventBatch, StoredRun
from router.core.index import BlockIndex
from router.core.ledger import LoadLedger
from router.core.types import BookingId, Incarnation, ReplicaId, Tenant, Tier
from router.decision import Decision, SelectRequest
from router.policies.registry import POLICIES, PolicySpec
from router.selector import Selector
from router.serve.leases import Lease, ReplicaLeases

REPLICAS = [ReplicaId(name) for name in ("R0", "R1", "R2")]
BLOCK_SIZE = 16
CHAINS = [[root, *range(10 * root, 10 * root + 6)] for root in (1, 2, 3)]
"""Prompts share their first blocks or nothing."""


class SelectorLives(RuleBasedStateMachine):
    """One selector with its real parts, from the first request to the end of the last."""

    bookings = st.integers(0, 9).map(BookingId)
    replicas = st.sampled_from(REPLICAS)
    prompts = st.builds(
        lambda chain, blocks: chain[:blocks], st.sampled_from(CHAINS), st.integers(0, 7)
    )

    def __init__(self) -> None:
        super().__init__()
        self.index = BlockIndex(max_blocks=4096, max_replicas=4)
        self.ledger = LoadLedger(4, max_bookings=6)
        self.leases = ReplicaLeases(4, stale_after_s=5.0, forget_after_s=30.0)
        self.selector = Selector(self.index, self.ledger, self.leases, Random(0), max_decisions=5)
        self.now = 0.0
        self.lives = 0
        self.seqs: dict[ReplicaId, int] = {}

    @rule(replica_id=replicas)
    def register(self, replica_id: ReplicaId) -> None:
        if self.leases.get(replica_id) is None:
            self.lives += 1
            life = Incarnation(self.lives)
            slot = self.index.register(replica_id, life)
            self.leases.add(Lease(replica_id, life, slot), self.now)
            self.seqs[replica_id] = 0

    @rule(replica_id=replicas)
    def forget(self, replica_id: ReplicaId) -> None:
        lease = self.leases.end(replica_id)
        if lease is not None:
            self.selector.forget(replica_id, lease.slot)
            assert not self.ledger.loads[:, lease.slot].any()

    @rule(replica_id=replicas, blocks=prompts)
    def store(self, replica_id: ReplicaId, blocks: list[int]) -> None:
        lease = self.leases.get(replica_id)
        if lease is not None and blocks:
            run = StoredRun(Tier.GPU, NO_PARENT, np.array(blocks, dtype=np.uint64))
            seq = self.seqs[replica_id]
            self.index.apply(EventBatch(replica_id, lease.incarnation, seq, (run,)))
            self.leases.renew(replica_id, lease.incarnation, self.now)
            self.seqs[replica_id] += 1

    @rule(
        batch=st.lists(st.tuples(bookings, prompts), min_size=1, max_size=4),
        policy=st.sampled_from(sorted(POLICIES)),
        extra_tokens=st.integers(0, BLOCK_SIZE - 1),
        lease_s=st.sampled_from([2.0, 20.0]),
    )
    def select(
        self,
        batch: list[tuple[BookingId, list[int]]],
        policy: str,
        extra_tokens: int,
        lease_s: float,
    ) -> None:
        requests = [
            SelectRequest(
                booking_id,
                Tenant("t"),
                np.array(blocks, dtype=np.uint64),
                len(blocks) * BLOCK_SIZE + extra_tokens,
                BLOCK_SIZE,
                self.now + 1.0,
                lease_s,
                PolicySpec(policy),
            )
            for booking_id, blocks in batch
        ]
        for outcome in self.selector.select(requests, self.now):
            if isinstance(outcome, Decision):
                assert 0 <= outcome.forecast_blocks <= outcome.overlap_blocks
                assert outcome.overlap_blocks <= outcome.speculative_blocks
                assert outcome.uncached_tokens >= 0

    @rule(booking_id=bookings, output_tokens=st.integers(0, 100))
    def report(self, booking_id: BookingId, output_tokens: int) -> None:
        known = booking_id in self.ledger
        assert self.selector.first_token(booking_id, self.now) == known
        assert self.selector.progress(booking_id, output_tokens, self.now) == known

    @rule(booking_id=bookings, replica_id=replicas)
    def move(self, booking_id: BookingId, replica_id: ReplicaId) -> None:
        expected = booking_id in self.ledger and self.leases.get(replica_id) is not None
        assert self.selector.move(booking_id, replica_id, self.now) == expected

    @rule(booking_id=bookings)
    def settle(self, booking_id: BookingId) -> None:
        known = booking_id in self.ledger
        assert (self.selector.settle(booking_id) is not None) == known

    @rule(passed_s=st.sampled_from([0.0, 1.0, 10.0, 40.0]))
    def sweep(self, passed_s: float) -> None:
        self.now += passed_s
        self.selector.sweep(self.now)

    @invariant()
    def is_sound(self) -> None:
        self.ledger.check_integrity()
        self.index.check_integrity()
        assert self.index.stats().bookings <= len(self.ledger)

    def teardown(self) -> None:
        self.selector.sweep(self.now + 1000.0)
        assert len(self.ledger) == 0
        assert not self.ledger.loads.any()
        assert self.index.stats().bookings == 0


SelectorLives.TestCase.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
TestSelectorLives = SelectorLives.TestCase
