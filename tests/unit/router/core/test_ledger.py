"""The load ledger: totals follow bookings through every order of calls, and nothing leaks."""

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from router.core.ledger import Booking, LoadLedger
from router.core.load_totals import Load, TenantLoad
from router.core.rates import UNOBSERVED, Rates
from router.core.types import BookingId, Slot, Tenant

REPLICAS = 4
BLOCK_SIZE = 16
A, B = Tenant("a"), Tenant("b")


def booking(
    booking_id: int,
    slot: int = 0,
    *,
    tenant: Tenant = A,
    prompt_tokens: int = 100,
    uncached_tokens: int = 68,
    lease_s: float = 10.0,
) -> Booking:
    return Booking(
        BookingId(booking_id),
        Slot(slot),
        tenant,
        prompt_tokens,
        uncached_tokens,
        BLOCK_SIZE,
        lease_s,
    )


def loads(ledger: LoadLedger, slot: int) -> tuple[int, int, int]:
    return (
        int(ledger.prefill_tokens[slot]),
        int(ledger.decode_blocks[slot]),
        int(ledger.requests[slot]),
    )


def test_a_booking_counts_until_it_is_settled() -> None:
    ledger = LoadLedger(REPLICAS)
    ledger.book(booking(1, 2), now=0.0)
    assert loads(ledger, 2) == (68, 7, 1)
    assert ledger.tenant(A) == TenantLoad(68, 7, 1)
    assert ledger.settle(BookingId(1)) == booking(1, 2)
    assert loads(ledger, 2) == (0, 0, 0)
    assert ledger.tenants() == {}


def test_the_first_token_ends_the_prefill_alone() -> None:
    ledger = LoadLedger(REPLICAS)
    ledger.book(booking(1), now=0.0)
    assert ledger.first_token(BookingId(1), now=1.0)
    assert ledger.first_token(BookingId(1), now=1.0)
    assert loads(ledger, 0) == (0, 7, 1)


def test_a_replica_that_joins_has_worked_lately_as_much_as_the_others_on_the_mean() -> None:
    ledger = LoadLedger(REPLICAS)
    for slot in (0, 1):
        ledger.recent.join(Slot(slot), now=0.0)
    ledger.book(booking(1, 0, uncached_tokens=100), now=0.0)
    ledger.book(booking(2, 1, uncached_tokens=300), now=0.0)
    ledger.recent.join(Slot(2), now=0.0)
    assert ledger.loads_at(0.0)[Load.RECENT_TOKENS].tolist() == [100, 300, 200, 0]
    ledger.forget(Slot(0))
    ledger.recent.join(Slot(0), now=0.0)
    assert ledger.loads_at(0.0)[Load.RECENT_TOKENS, 0] == pytest.approx(250)


def test_outstanding_bookings_come_with_their_present_load() -> None:
    ledger = LoadLedger(REPLICAS)
    ledger.book(booking(1), now=0.0)
    ledger.book(booking(2, 3), now=0.0)
    ledger.first_token(BookingId(1), now=1.0)
    ledger.progress(BookingId(1), 30, now=1.0)
    assert list(ledger.outstanding()) == [(booking(1), 0, 9), (booking(2, 3), 68, 7)]


def test_output_grows_blocks_and_a_late_smaller_total_takes_none_back() -> None:
    ledger = LoadLedger(REPLICAS)
    ledger.book(booking(1), now=0.0)
    ledger.progress(BookingId(1), 30, now=1.0)
    assert loads(ledger, 0) == (68, 9, 1)
    ledger.progress(BookingId(1), 3, now=2.0)
    assert loads(ledger, 0) == (68, 9, 1)


def test_booking_twice_counts_once() -> None:
    ledger = LoadLedger(REPLICAS)
    ledger.book(booking(1, 0), now=0.0)
    ledger.book(booking(1, 3), now=0.0)
    assert loads(ledger, 0) == (68, 7, 1)
    assert loads(ledger, 3) == (0, 0, 0)
    assert ledger.counters.duplicate == 1


def test_calls_for_an_unknown_booking_change_nothing_and_are_counted() -> None:
    ledger = LoadLedger(REPLICAS)
    assert ledger.settle(BookingId(9)) is None
    assert not ledger.first_token(BookingId(9), now=0.0)
    assert not ledger.progress(BookingId(9), 5, now=0.0)
    assert not ledger.move(BookingId(9), Slot(1))
    assert ledger.counters.unknown == 4
    assert not ledger.loads.any()


def test_settling_twice_releases_once() -> None:
    ledger = LoadLedger(REPLICAS)
    ledger.book(booking(1), now=0.0)
    ledger.book(booking(2), now=0.0)
    ledger.settle(BookingId(1))
    assert ledger.settle(BookingId(1)) is None
    assert loads(ledger, 0) == (68, 7, 1)


def test_a_moved_booking_takes_its_present_load_along() -> None:
    ledger = LoadLedger(REPLICAS)
    ledger.book(booking(1, 0), now=0.0)
    ledger.first_token(BookingId(1), now=0.0)
    ledger.progress(BookingId(1), 30, now=0.0)
    ledger.move(BookingId(1), Slot(2))
    ledger.move(BookingId(1), Slot(2))
    assert loads(ledger, 0) == (0, 0, 0)
    assert loads(ledger, 2) == (0, 9, 1)
    assert ledger.counters.moved == 1
    settled = ledger.settle(BookingId(1))
    assert settled is not None and settled.slot == 2


def test_bookings_of_vanished_clients_lapse_by_the_timer_without_new_requests() -> None:
    """200 streams dropped before the first token, in mid-stream and at the end leave nothing."""
    ledger = LoadLedger(REPLICAS)
    for i in range(200):
        ledger.book(booking(i, i % REPLICAS, tenant=(A, B)[i % 2], lease_s=5.0), now=0.0)
        if i % 3:
            ledger.first_token(BookingId(i), now=1.0)
        if i % 3 == 2:
            ledger.progress(BookingId(i), 50, now=2.0)
    assert ledger.sweep(now=4.9) == []
    assert len(ledger.sweep(now=5.0)) == 67
    assert len(ledger.sweep(now=7.0)) == 133
    assert not ledger.loads.any()
    assert ledger.tenants() == {}
    assert ledger.counters.swept == 200


def test_a_late_call_after_the_sweep_is_harmless() -> None:
    ledger = LoadLedger(REPLICAS)
    ledger.book(booking(1, lease_s=5.0), now=0.0)
    ledger.sweep(now=6.0)
    assert ledger.settle(BookingId(1)) is None
    assert not ledger.loads.any()


def test_progress_keeps_a_long_generation_booked() -> None:
    ledger = LoadLedger(REPLICAS)
    ledger.book(booking(1, lease_s=5.0), now=0.0)
    for now in range(4, 60, 4):
        assert ledger.progress(BookingId(1), now, float(now))
        assert ledger.sweep(float(now)) == []
    assert len(ledger.sweep(now=61.0)) == 1


def test_at_the_cap_the_booking_that_would_lapse_first_gives_way() -> None:
    ledger = LoadLedger(REPLICAS, max_bookings=2)
    ledger.book(booking(1, lease_s=5.0), now=0.0)
    ledger.book(booking(2, lease_s=9.0), now=0.0)
    ledger.progress(BookingId(1), 1, now=8.0)
    assert ledger.book(booking(3, 1), now=8.0) == [booking(2, lease_s=9.0)]
    assert len(ledger) == 2
    assert ledger.counters.displaced == 1
    ledger.check_integrity()


def test_forgetting_a_replica_releases_all_that_was_booked_there() -> None:
    ledger = LoadLedger(REPLICAS)
    ledger.book(booking(1, 0), now=0.0)
    ledger.book(booking(2, 1, tenant=B), now=0.0)
    ledger.book(booking(3, 1), now=0.0)
    assert [gone.booking_id for gone in ledger.forget(Slot(1))] == [2, 3]
    assert loads(ledger, 1) == (0, 0, 0)
    assert ledger.tenants() == {A: TenantLoad(68, 7, 1)}
    assert ledger.forget(Slot(1)) == []


def test_callers_cannot_write_into_the_totals() -> None:
    ledger = LoadLedger(REPLICAS)
    with pytest.raises(ValueError, match="read-only"):
        ledger.requests[0] = 5


@dataclass
class NaiveEntry:
    slot: Slot
    prompt_tokens: int
    prefill_tokens: int
    lease_s: float
    expires_at: float
    output_tokens: int = 0

    def renew(self, now: float) -> None:
        self.expires_at = max(self.expires_at, now + self.lease_s)


class LedgerAgainstNaive(RuleBasedStateMachine):
    """The ledger equals a dictionary that is summed afresh, whatever the calls and their order."""

    ids = st.integers(0, 12).map(BookingId)
    slots = st.integers(0, REPLICAS - 1).map(Slot)

    def __init__(self) -> None:
        super().__init__()
        self.ledger = LoadLedger(REPLICAS, max_bookings=8)
        self.model: dict[BookingId, NaiveEntry] = {}
        self.now = 0.0

    @rule(
        booking_id=ids,
        slot=slots,
        tenant=st.sampled_from([A, B]),
        prompt_tokens=st.integers(0, 200),
        share=st.floats(0, 1),
        lease_s=st.sampled_from([1.0, 3.0, 10.0]),
    )
    def book(
        self,
        booking_id: BookingId,
        slot: Slot,
        tenant: Tenant,
        prompt_tokens: int,
        share: float,
        lease_s: float,
    ) -> None:
        uncached = int(prompt_tokens * share)
        entry = Booking(booking_id, slot, tenant, prompt_tokens, uncached, BLOCK_SIZE, lease_s)
        displaced = self.ledger.book(entry, self.now)
        if booking_id in self.model:
            assert displaced == []
            return
        if len(self.model) == 8:
            (gone,) = displaced
            first = min(entry.expires_at for entry in self.model.values())
            assert self.model.pop(gone.booking_id).expires_at == first
        self.model[booking_id] = NaiveEntry(
            slot, prompt_tokens, uncached, lease_s, self.now + lease_s
        )

    @rule(booking_id=ids)
    def first_token(self, booking_id: BookingId) -> None:
        assert self.ledger.first_token(booking_id, self.now) == (booking_id in self.model)
        if booking_id in self.model:
            self.model[booking_id].prefill_tokens = 0
            self.model[booking_id].renew(self.now)

    @rule(booking_id=ids, output_tokens=st.integers(0, 300))
    def progress(self, booking_id: BookingId, output_tokens: int) -> None:
        known = self.ledger.progress(booking_id, output_tokens, self.now)
        assert known == (booking_id in self.model)
        if known:
            entry = self.model[booking_id]
            entry.output_tokens = max(entry.output_tokens, output_tokens)
            entry.renew(self.now)

    @rule(booking_id=ids, slot=slots)
    def move(self, booking_id: BookingId, slot: Slot) -> None:
        assert self.ledger.move(booking_id, slot) == (booking_id in self.model)
        if booking_id in self.model:
            self.model[booking_id].slot = slot

    @rule(booking_id=ids)
    def settle(self, booking_id: BookingId) -> None:
        settled = self.ledger.settle(booking_id)
        entry = self.model.pop(booking_id, None)
        assert (settled is None) == (entry is None)
        if settled is not None and entry is not None:
            assert settled.slot == entry.slot

    @rule(slot=slots)
    def forget(self, slot: Slot) -> None:
        gone = {key for key, entry in self.model.items() if entry.slot == slot}
        assert {booking.booking_id for booking in self.ledger.forget(slot)} == gone
        for key in gone:
            del self.model[key]

    @rule(passed_s=st.sampled_from([0.0, 0.5, 2.0, 20.0]))
    def sweep(self, passed_s: float) -> None:
        self.now += passed_s
        gone = {key for key, entry in self.model.items() if entry.expires_at <= self.now}
        assert {booking.booking_id for booking in self.ledger.sweep(self.now)} == gone
        for key in gone:
            del self.model[key]

    @invariant()
    def equals_the_model(self) -> None:
        expected = np.zeros((3, REPLICAS), dtype=np.int64)
        for entry in self.model.values():
            blocks = -(-(entry.prompt_tokens + entry.output_tokens) // BLOCK_SIZE)
            expected[:, entry.slot] += (entry.prefill_tokens, blocks, 1)
        assert (self.ledger.loads == expected).all()
        self.ledger.check_integrity()

    def teardown(self) -> None:
        for booking_id in list(self.model):
            self.ledger.settle(booking_id)
        assert not self.ledger.loads.any()
        assert self.ledger.tenants() == {}
        assert len(self.ledger) == 0


LedgerAgainstNaive.TestCase.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None
)
TestLedgerAgainstNaive = LedgerAgainstNaive.TestCase


def test_room_follows_bookings_to_where_they_move_and_out() -> None:
    ledger = LoadLedger(REPLICAS)
    for slot in range(2):
        ledger.room.set_size(Slot(slot), 1000)
    ledger.book(booking(1, 0, uncached_tokens=300), now=0.0)
    assert ledger.room.tokens[:2].tolist() == [700.0, 1000.0]
    ledger.first_token(BookingId(1), now=1.0)
    ledger.move(BookingId(1), Slot(1))
    assert ledger.room.tokens[:2].tolist() == [1000.0, 700.0]
    ledger.settle(BookingId(1))
    assert ledger.room.tokens[:2].tolist() == [1000.0, 1000.0]


def learned(ledger: LoadLedger) -> Rates:
    return ledger.rates.of(np.arange(REPLICAS))


def test_the_ledger_learns_from_first_tokens_that_waited_for_nobody() -> None:
    ledger = LoadLedger(REPLICAS)
    for number in range(100):
        now, tokens = 10.0 * number, 100 + 50 * (number % 7)
        ledger.book(booking(2 * number, uncached_tokens=tokens), now=now)
        ledger.book(booking(2 * number + 1, uncached_tokens=900), now=now)
        ledger.first_token(BookingId(2 * number), now=now + 0.002 * tokens)
        ledger.first_token(BookingId(2 * number + 1), now=now + 5.0)
        ledger.settle(BookingId(2 * number))
        ledger.settle(BookingId(2 * number + 1))
    per_token, prior_share = learned(ledger).prefill
    assert per_token == pytest.approx(2.0 * (1 - prior_share))


def test_a_request_that_another_replica_took_teaches_nothing() -> None:
    ledger = LoadLedger(REPLICAS)
    for number in range(20):
        ledger.book(booking(number, uncached_tokens=100 * number), now=0.0)
        ledger.move(BookingId(number), Slot(1))
        ledger.first_token(BookingId(number), now=float(number))
        ledger.settle(BookingId(number))
    assert learned(ledger) == UNOBSERVED


def test_the_ledger_learns_what_the_blocks_there_add_to_a_step() -> None:
    ledger = LoadLedger(REPLICAS)
    for number in range(50):
        ledger.book(booking(number, prompt_tokens=BLOCK_SIZE * 100), now=0.0)
        ledger.first_token(BookingId(number), now=0.0)
        ledger.progress(BookingId(number), 1, now=0.001 * 100 * (number + 1))
    assert learned(ledger).decode.learned > 0.5
