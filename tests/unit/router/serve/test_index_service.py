"""One life of the index, bytes in and bytes out, without Ray."""

from collections.abc import Iterator, Sequence
from itertools import count
from random import Random

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.core.events import EventBatch, SnapshotChunk
from router.core.events import StoredRun as HeldRun
from router.core.load_totals import Load
from router.core.store_access import LoadLine
from router.core.store_directory import StoredPiece
from router.core.transfer import StoredRun
from router.core.types import BookingId, Incarnation, ReplicaId, StoreId, Tenant, Tier
from router.serve.caller_bookings import Notes
from router.serve.flights import Booked, RoutingRequest, pack_flight
from router.serve.index_service import IndexService
from router.serve.index_settings import IndexSettings
from router.serve.store_wire import StoredObject, StoreNews, decode_stored_sizes
from router.serve.wire import (
    MAX_BATCH_BLOCKS,
    Answer,
    Landing,
    Outcome,
    Receipt,
    Registration,
    Verdict,
    decode_landing,
    decode_receipt,
    encode,
)

SETTINGS = IndexSettings(max_replicas=8, max_blocks=10_000)
SYSTEM = np.random.default_rng(0).integers(1, 2**63, 16, dtype=np.uint64)
CHAINS = [
    np.concatenate([SYSTEM, np.random.default_rng(n).integers(1, 2**63, 48, dtype=np.uint64)])
    for n in range(1, 5)
]
R1 = ReplicaId("r1")
DEAR = LoadLine(fixed_ms=9, ms_per_block=0.1, compute_ms_per_block=1)
ONE = Incarnation(1)


class Index:
    """A service with the calls that its callers make."""

    def __init__(self, replicas: int = 0) -> None:
        self.service = IndexService(SETTINGS, Incarnation(1), Random(3))
        for number in range(replicas):
            self.register(ReplicaId(f"r{number}"))
            self.store(ReplicaId(f"r{number}"), CHAINS[number % len(CHAINS)])

    def register(self, replica_id: ReplicaId = R1, incarnation: Incarnation = ONE) -> Receipt:
        message = encode(Registration(replica_id, incarnation))
        return decode_receipt(self.service.register(message, 0.0))

    def store(
        self, replica_id: ReplicaId, chain: np.ndarray, seq: int = 0, incarnation: Incarnation = ONE
    ) -> Receipt:
        batch = EventBatch(replica_id, incarnation, seq, (HeldRun(Tier.GPU, 0, chain),))
        return decode_receipt(self.service.apply(batch.pack(), 0.0))

    def exchange(
        self,
        chains: list[int],
        ids: Iterator[int],
        settled: Sequence[int] = (),
        expires_at: float = 9.0,
    ) -> Landing:
        booked = [(Booked(BookingId(next(ids)), prompt(chain)), expires_at) for chain in chains]
        notes = Notes(settled=dict.fromkeys(map(BookingId, settled)))
        flight = pack_flight(booked, notes, [], lease_s=30, members_version=-1)
        return decode_landing(self.service.exchange(flight, 1.0))

    def held(self, replica_id: ReplicaId) -> int:
        return self.service.index.blocks_by_replica().get(replica_id, (0, 0, 0))[0]


def prompt(chain: int) -> RoutingRequest:
    return RoutingRequest(CHAINS[chain].tobytes(), 64 * 16, 16, Tenant("t"))


Groups = list[tuple[list[int], int]]


@settings(deadline=None)
@given(st.lists(st.tuples(st.lists(st.integers(0, 3), max_size=8), st.integers(0, 4)), max_size=8))
def test_requests_get_the_same_answers_together_as_one_by_one(groups: Groups) -> None:
    """Coalescing saves calls and changes no decision: each sees the bookings before it."""
    assert decide(groups, together=True) == decide(groups, together=False)


def decide(groups: Groups, *, together: bool) -> list[Answer]:
    """Each group: so many of the oldest live requests end, then these chains are asked for."""
    index, ids, answers, live = Index(replicas=4), count(1), list[Answer](), list[int]()
    for chains, ending in groups:
        ended, live = live[:ending], live[ending:]
        live += range(len(answers) + 1, len(answers) + 1 + len(chains))
        if together:
            answers += index.exchange(chains, ids, ended).answers
        else:
            index.exchange([], ids, ended)
            for chain in chains:
                answers += index.exchange([chain], ids).answers
    index.service.index.check_integrity()
    return answers


def test_says_when_replicas_are_not_fully_known() -> None:
    index = Index()
    index.register()
    landing = index.exchange([0], count(1))
    assert landing.refilling == 1
    assert landing.answers[0].reason == "only_candidate:index_refilling"

    index.store(R1, CHAINS[0])

    assert index.exchange([0], count(9)).answers[0].reason == "only_candidate"


def test_a_replica_that_registers_has_worked_lately_as_much_as_the_others() -> None:
    index = Index(replicas=2)
    index.exchange([3], count(1))
    index.register(ReplicaId("r2"))
    recent = index.service.ledger.loads_at(0.0)[Load.RECENT_TOKENS]
    assert 0 < recent[2] == pytest.approx(recent[:2].mean())


def test_a_late_add_after_the_removal_leaves_nothing_behind() -> None:
    index = Index()
    for life in range(1, 200):
        incarnation = Incarnation(life)
        assert index.register(R1, incarnation).verdict == Verdict.ACCEPTED
        index.store(R1, CHAINS[0], incarnation=incarnation)
        index.service.forget(encode(Registration(R1, incarnation)))

        late = index.store(R1, CHAINS[1], seq=1, incarnation=incarnation)

        assert late.verdict == Verdict.REINCARNATE
        assert index.held(R1) == 0
    index.service.index.check_integrity()


def test_a_later_life_replaces_what_the_one_before_held() -> None:
    index = Index()
    index.register(R1, Incarnation(1))
    index.store(R1, CHAINS[0], incarnation=Incarnation(1))
    index.exchange([0], count(1))

    index.register(R1, Incarnation(2))

    assert index.held(R1) == 0
    assert len(index.service.ledger) == 0
    assert index.store(R1, CHAINS[0], seq=1).verdict == Verdict.REINCARNATE


def test_a_snapshot_in_parts_counts_once_it_is_complete() -> None:
    index = Index()
    index.register()
    for part, is_last in enumerate((False, True)):
        run = HeldRun(Tier.GPU, 0, CHAINS[part])
        chunk = SnapshotChunk(R1, ONE, 7, part, is_last, (run,))
        receipt = decode_receipt(index.service.snapshot(chunk.pack(), 0.0))
        assert receipt.verdict == Verdict.ACCEPTED
        assert index.service.events.refilling == int(not is_last)

    assert index.held(R1) == 112
    assert index.store(R1, CHAINS[2], seq=8).verdict == Verdict.ACCEPTED


def test_expired_selections_book_nothing() -> None:
    index = Index(replicas=2)

    landing = index.exchange([0, 1], count(1), expires_at=0.5)

    assert [answer.outcome for answer in landing.answers] == [Outcome.EXPIRED] * 2
    assert len(index.service.ledger) == 0


def test_full_slots_refuse_another_replica() -> None:
    index = Index(replicas=8)

    assert index.register(ReplicaId("one-more")).verdict == Verdict.FULL


def test_a_heir_knows_what_its_predecessor_knew() -> None:
    old, ids = Index(replicas=4), count(1)
    old.exchange([0, 1, 2, 3, 0, 0], ids)
    old.service.ledger.first_token(BookingId(1), 1.0)
    old.service.ledger.progress(BookingId(2), 100, 1.0)
    heir = IndexService(SETTINGS, Incarnation(2), Random(3))

    for page in old.service.pages():
        heir.take_over(page, 1.0)

    assert heir.index.blocks_by_replica() == old.service.index.blocks_by_replica()
    assert loads_by_name(heir) == loads_by_name(old.service)
    assert heir.events.refilling == 0
    heir.index.check_integrity()
    heir.ledger.check_integrity()


def loads_by_name(service: IndexService) -> dict[ReplicaId, list[int]]:
    return {
        lease.replica_id: service.ledger.loads[:, lease.slot].tolist()
        for lease in service.leases.leases()
    }


@pytest.mark.parametrize("payload", [b"", b"nonsense", encode(Registration("r", 1))])
def test_what_is_no_flight_is_refused(payload: bytes) -> None:
    with pytest.raises((msgspec.MsgspecError, ValueError)):
        Index().service.exchange(payload, 0.0)


def test_a_flight_with_too_few_hashes_is_refused_before_anything_is_booked() -> None:
    index = Index(replicas=1)
    booked = [(Booked(BookingId(1), RoutingRequest(b"12345678", 16, 16)), 9.0)]
    flight = msgspec.msgpack.decode(
        pack_flight(booked, Notes(), [], lease_s=30, members_version=-1)
    )
    flight[-1] = b""

    with pytest.raises(ValueError, match="fewer hashes"):
        index.service.exchange(msgspec.msgpack.encode(flight), 0.0)
    assert len(index.service.ledger) == 0


class TestStores:
    KEY, CHAIN = b"object-1", CHAINS[0][:8]

    def report(
        self, index: Index, now: float = 0.0, *, begins: bool = False, **news: list[StoredObject]
    ) -> Receipt:
        message = StoreNews("s1", news.get("added", []), news.get("removed", []), begins)
        return decode_receipt(index.service.report_stored(encode(message), now))

    def filled(self) -> Index:
        index = Index()
        added = [StoredObject(self.KEY, self.CHAIN.tobytes())]
        assert self.report(index, begins=True, added=added) == Receipt(1, Verdict.ACCEPTED)
        return index

    def test_a_store_that_is_not_known_is_asked_for_all_that_it_has(self) -> None:
        index = Index()
        added = [StoredObject(self.KEY, self.CHAIN.tobytes())]
        assert self.report(index, added=added).verdict == Verdict.WANTS_SNAPSHOT
        assert not index.service.index.stored(CHAINS[0])

    def test_a_store_that_begins_again_has_only_what_it_says_from_then_on(self) -> None:
        index = self.filled()
        others = np.arange(1, 9, dtype=np.uint64)
        added = [StoredObject(b"object-2", others.tobytes())]
        assert self.report(index, begins=True, added=added).verdict == Verdict.ACCEPTED
        assert not index.service.index.stored(CHAINS[0])
        assert [piece.blocks for piece in index.service.index.stored(others)] == [8]

    def test_what_is_stored_is_told_by_the_ends_of_objects(self) -> None:
        index, end = Index(), self.CHAIN[-1:].tobytes()
        self.report(index, begins=True, added=[StoredObject(self.KEY, self.CHAIN.tobytes(), 128)])
        asked = end + self.CHAIN[3:4].tobytes() + end
        sizes = decode_stored_sizes(index.service.stored_sizes(asked))
        assert sizes.block_bytes == 128 // len(self.CHAIN)
        assert np.frombuffer(sizes.blocks, "<u4").tolist() == [len(self.CHAIN), 0, len(self.CHAIN)]

    def test_a_silent_store_is_forgotten(self) -> None:
        index = self.filled()
        self.report(index, now=20.0)
        index.service.sweep(49.0)
        assert index.service.index.stored(CHAINS[0])
        index.service.sweep(51.0)
        assert not index.service.index.stored(CHAINS[0])
        assert self.report(index, now=52.0).verdict == Verdict.WANTS_SNAPSHOT

    def test_a_stored_object_is_found_by_its_blocks(self) -> None:
        found = self.filled().service.index.stored(CHAINS[0])
        assert found == [StoredPiece(0, len(self.CHAIN), {StoreId("s1"): self.KEY})]

    def test_a_removed_object_is_not(self) -> None:
        index = self.filled()
        self.report(index, removed=[StoredObject(self.KEY, self.CHAIN.tobytes())])
        assert not index.service.index.stored(CHAINS[0])

    def test_a_store_that_goes_takes_its_objects_along(self) -> None:
        index = self.filled()
        decode_receipt(index.service.forget_store("s1"))
        assert not index.service.index.stored(CHAINS[0])

    def test_a_decision_names_what_a_replica_with_a_store_can_load(self) -> None:
        """A replica that measured that computing is cheaper computes."""
        index, ids = self.filled(), count(1)
        index.register()
        (without,) = index.exchange([0], ids).answers
        assert (without.loads, without.forecast_blocks) == ((), 0)
        expected = (StoredRun(0, len(self.CHAIN), StoreId("s1"), self.KEY),)
        for line, loads in ((None, expected), (LoadLine(1, 0.1, 1), expected), (DEAR, ())):
            index.service.register(encode(Registration(R1, ONE, 0, StoreId("s1"), line)), 0.0)
            settled = [next(ids) - 1]  # what is on its way there is not worth a load
            (answer,) = index.exchange([0], ids, settled).answers
            assert answer.loads == loads
            assert answer.forecast_blocks == answer.load_blocks == (8 if loads else 0)
            assert answer.reason.startswith("kv_load") == bool(loads)
            assert answer.seen_blocks == 8

    def test_too_much_at_once_is_refused(self) -> None:
        index = Index()
        many = np.arange(1, MAX_BATCH_BLOCKS + 2, dtype=np.uint64).tobytes()
        receipt = self.report(index, added=[StoredObject(self.KEY, many)])
        assert receipt.verdict == Verdict.TOO_LARGE
        assert index.service.index.stats().stored_blocks == 0


def test_a_replica_says_what_its_cache_holds_also_when_it_is_known() -> None:
    index = Index()
    index.register()
    room = index.service.ledger.room
    assert not room.is_known
    index.service.register(encode(Registration(R1, ONE, cache_tokens=640)), 0.0)
    assert room.tokens[0] == 640.0
