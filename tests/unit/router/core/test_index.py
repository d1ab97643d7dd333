"""The block index: order of events, lives, snapshots, speculation, cap and explanations."""

import numpy as np
import pytest

from router.core.errors import RegistrationRefused
from router.core.events import NO_PARENT, EventBatch, SnapshotChunk, StoredRun
from router.core.index import BlockIndex
from router.core.streams import Outcome
from router.core.types import BookingId, Incarnation, ReplicaId, Slot, StoreId, Tier
from tests.unit.router.core.index_model import FIRST_LIFE, R1, R2, batch, chain, gone, run

B1, B2 = BookingId(1), BookingId(2)


def index_of(*replicas: ReplicaId, max_blocks: int = 1000, max_replicas: int = 8) -> BlockIndex:
    index = BlockIndex(max_blocks, max_replicas)
    for replica in replicas:
        index.register(replica, FIRST_LIFE)
    return index


def slot_of(index: BlockIndex, replica: ReplicaId) -> Slot:
    return index.register(replica, FIRST_LIFE)


def confirmed(index: BlockIndex, replica: ReplicaId, text: str) -> int:
    return int(index.overlaps(chain(text)).tiers[Tier.GPU, slot_of(index, replica)])


def speculative(index: BlockIndex, replica: ReplicaId, text: str) -> int:
    return int(index.overlaps(chain(text)).speculative[slot_of(index, replica)])


def snapshot(
    *stored: StoredRun, seq: int, index: int = 0, is_last: bool = True, life: int = 1
) -> SnapshotChunk:
    return SnapshotChunk(R1, Incarnation(life), seq, index, is_last, stored)


class TestOrder:
    def test_a_late_or_double_batch_changes_nothing(self) -> None:
        index = index_of(R1)
        index.apply(batch(0, run("abc")))
        index.apply(batch(1, gone("c", after="ab")))
        again = index.apply(batch(0, run("abc")))
        assert (again.outcome, again.wants_snapshot) == (Outcome.DUPLICATE, False)
        assert confirmed(index, R1, "abc") == 2

    def test_a_missed_batch_is_noticed_once_and_applied_before_the_later_ones(self) -> None:
        """1, 3, 4, then 2 arrives late: no event may be lost and none applied twice."""
        index = index_of(R1)
        index.apply(batch(0, run("a")))
        ahead = [index.apply(batch(2, run("c", after="ab"))), index.apply(batch(3, run("x")))]
        assert [(r.outcome, r.wants_snapshot) for r in ahead] == [(Outcome.HELD, True)] * 2
        assert (index.stats().gaps, index.stats().incomplete_replicas) == (1, 1)
        late = index.apply(batch(1, run("b", after="a")))
        assert (late.outcome, late.wants_snapshot, late.blocks) == (Outcome.APPLIED, False, 3)
        assert confirmed(index, R1, "abc") == 3
        assert index.stats().incomplete_replicas == 0

    def test_what_is_too_far_ahead_is_dropped_and_still_wanted(self) -> None:
        index = index_of(R1)
        results = [index.apply(batch(seq)) for seq in range(1, 100)]
        assert results[-1].outcome is Outcome.GAP
        assert all(result.wants_snapshot for result in results)
        index.load_snapshot(snapshot(run("ab"), seq=99))
        assert index.apply(batch(100, run("c", after="ab"))).outcome is Outcome.APPLIED
        assert confirmed(index, R1, "abc") == 3

    def test_an_index_that_restarted_asks_for_a_snapshot_and_routes_without_error(self) -> None:
        """Children of blocks that only the index before knew are usable after the resync."""
        index = index_of(R1)
        result = index.apply(batch(17, run("c", after="ab")))
        assert result.wants_snapshot
        assert confirmed(index, R1, "abc") == 0
        index.load_snapshot(snapshot(run("ab"), seq=16))
        assert confirmed(index, R1, "abc") == 3

    def test_an_empty_batch_keeps_the_order(self) -> None:
        index = index_of(R1)
        assert index.apply(batch(0)).outcome is Outcome.APPLIED
        assert index.apply(batch(1, run("a"))).outcome is Outcome.APPLIED


class TestLives:
    def test_an_unknown_replica_is_refused(self) -> None:
        index = index_of(R1)
        assert index.apply(batch(0, run("a"), replica=R2)).outcome is Outcome.UNKNOWN_REPLICA
        assert index.stats().blocks == 0

    def test_a_replica_that_died_attracts_no_traffic(self) -> None:
        index = index_of(R1, R2)
        index.apply(batch(0, run("abc")))
        index.forget(R1)
        assert not index.overlaps(chain("abc")).tiers.any()
        assert index.stats().blocks == 0

    def test_a_replica_that_restarts_under_its_name_is_cold_until_new_events(self) -> None:
        index = index_of(R1)
        index.apply(batch(0, run("abc")))
        index.speculate(B1, slot_of(index, R1), chain("xyz"), expires_at=9.0)
        slot = index.register(R1, Incarnation(2))
        assert slot == 0
        assert not index.overlaps(chain("abc")).tiers.any()
        assert not index.overlaps(chain("xyz")).speculative.any()
        index.apply(batch(0, run("a"), incarnation=Incarnation(2)))
        assert index.overlaps(chain("abc")).tiers[Tier.GPU, slot] == 1

    def test_a_late_event_of_a_removed_replica_does_not_bring_it_back(self) -> None:
        index = index_of(R1, R2)
        index.apply(batch(0, run("ab")))
        index.forget(R1)
        assert index.apply(batch(1, run("abc"))).outcome is Outcome.UNKNOWN_REPLICA
        assert index.load_snapshot(snapshot(run("a"), seq=0)).outcome is Outcome.UNKNOWN_REPLICA
        assert index.blocks_by_replica() == {R2: (0, 0, 0)}

    def test_events_of_an_earlier_life_are_refused(self) -> None:
        index = index_of(R1)
        index.register(R1, Incarnation(5))
        old = index.apply(batch(0, run("ab"), incarnation=Incarnation(4)))
        assert old.outcome is Outcome.STALE_INCARNATION
        new = index.apply(batch(0, run("ab"), incarnation=Incarnation(6)))
        assert new.outcome is Outcome.UNKNOWN_REPLICA
        assert index.blocks_by_replica() == {R1: (0, 0, 0)}

    def test_an_earlier_life_cannot_register_even_after_the_later_one_left(self) -> None:
        index = index_of(R1)
        index.register(R1, Incarnation(5))
        index.forget(R1)
        with pytest.raises(RegistrationRefused):
            index.register(R1, Incarnation(4))
        index.register(R1, Incarnation(5))

    def test_the_next_replica_in_a_slot_inherits_nothing(self) -> None:
        index = index_of(R1, max_replicas=1)
        index.apply(batch(0, run("abc"), run("ab", tier=Tier.CPU)))
        index.speculate(B1, slot_of(index, R1), chain("xy"), expires_at=9.0)
        index.forget(R1)
        slot = index.register(R2, FIRST_LIFE)
        overlap = index.overlaps(chain("abc"))
        assert slot == 0
        assert not overlap.tiers.any()
        assert not index.overlaps(chain("xy")).speculative.any()

    def test_more_replicas_than_slots_are_refused(self) -> None:
        index = index_of(R1, max_replicas=1)
        with pytest.raises(RegistrationRefused):
            index.register(R2, FIRST_LIFE)
        assert index.register(R1, FIRST_LIFE) == 0

    def test_churn_of_replicas_leaves_nothing_behind(self) -> None:
        """Two hundred replicas come and go; sizes return to where they were."""
        index = BlockIndex(max_blocks=500, max_replicas=4)
        for life in range(200):
            replica = ReplicaId(f"replica-{life}")
            index.register(replica, FIRST_LIFE)
            stored = StoredRun(Tier.GPU, NO_PARENT, chain("p" + chr(300 + life) + "qrs" * 20))
            index.apply(EventBatch(replica, FIRST_LIFE, 0, (stored,)))
            index.forget(replica)
        for _ in range(2):
            index.sweep(now=0.0)
        stats = index.stats()
        assert (stats.replicas, stats.blocks, stats.dead_blocks, stats.segments) == (0, 0, 0, 0)
        assert stats.holder_sets < 10
        index.check_integrity()


class TestTiers:
    def test_a_block_counts_at_its_tier_and_all_slower_ones(self) -> None:
        index = index_of(R1)
        index.apply(
            batch(
                0,
                run("ab"),
                run("cd", after="ab", tier=Tier.CPU),
                run("e", after="abcd", tier=Tier.STORAGE),
            )
        )
        assert index.overlaps(chain("abcdef")).tiers[:, 0].tolist() == [2, 4, 5]

    def test_a_gpu_reset_keeps_what_lies_on_slower_tiers_and_in_stores(self) -> None:
        index = index_of(R1)
        index.apply(batch(0, run("abc"), run("ab", tier=Tier.CPU)))
        index.add_stored(chain("abc"), StoreId("s"), b"key")
        index.apply(batch(1, cleared=(Tier.GPU,)))
        assert index.overlaps(chain("abc")).tiers[:, 0].tolist() == [0, 2, 2]
        assert [piece.blocks for piece in index.stored(chain("abcd"))] == [3]
        index.apply(batch(2, cleared=tuple(Tier)))
        index.forget_store(StoreId("s"))
        assert not index.overlaps(chain("abc")).tiers.any()
        assert not index.stored(chain("abc"))

    def test_an_interior_hole_ends_the_overlap_and_filling_it_restores_the_rest(self) -> None:
        index = index_of(R1, R2)
        index.apply(batch(0, run("abcdef")))
        index.apply(batch(0, run("abcdef"), replica=R2))
        index.apply(batch(1, gone("c", after="ab")))
        assert (confirmed(index, R1, "abcdef"), confirmed(index, R2, "abcdef")) == (2, 6)
        index.apply(batch(2, run("c", after="ab")))
        assert confirmed(index, R1, "abcdef") == 6


class TestSnapshots:
    def test_a_snapshot_replaces_everything_at_once_with_its_last_chunk(self) -> None:
        index = index_of(R1, R2)
        index.apply(batch(0, run("abc")))
        index.apply(batch(0, run("abc"), replica=R2))
        index.load_snapshot(snapshot(run("xy"), seq=5, is_last=False))
        assert (confirmed(index, R1, "abc"), confirmed(index, R1, "xyz")) == (3, 0)
        index.load_snapshot(snapshot(run("z", after="xy"), seq=5, index=1))
        assert (confirmed(index, R1, "abc"), confirmed(index, R1, "xyz")) == (0, 3)
        assert confirmed(index, R2, "abc") == 3
        assert index.apply(batch(6, gone("z", after="xy"))).outcome is Outcome.APPLIED
        assert confirmed(index, R1, "xyz") == 2

    def test_a_batch_that_arrives_during_a_snapshot_is_applied_after_it(self) -> None:
        index = index_of(R1)
        index.apply(batch(0, run("q")))
        index.load_snapshot(snapshot(run("ab"), seq=3, is_last=False))
        during = [index.apply(batch(3, gone("ab"))), index.apply(batch(4, gone("b", after="a")))]
        assert [(r.outcome, r.wants_snapshot) for r in during] == [(Outcome.HELD, False)] * 2
        index.load_snapshot(snapshot(run("c", after="ab"), seq=3, index=1))
        assert confirmed(index, R1, "abc") == 1
        assert index.stats().incomplete_replicas == 0

    def test_a_chunk_out_of_order_gives_the_snapshot_up_and_keeps_what_was_known(self) -> None:
        index = index_of(R1)
        index.apply(batch(0, run("abc")))
        index.load_snapshot(snapshot(run("xy"), seq=5, is_last=False))
        torn = index.load_snapshot(snapshot(run("q"), seq=5, index=2))
        assert (torn.outcome, torn.wants_snapshot) == (Outcome.OUT_OF_ORDER, True)
        assert (confirmed(index, R1, "abc"), confirmed(index, R1, "xy")) == (3, 0)
        index.check_integrity()

    def test_a_snapshot_older_than_what_was_applied_is_refused(self) -> None:
        index = index_of(R1)
        index.apply(batch(0, run("ab")))
        index.apply(batch(1, run("c", after="ab")))
        assert index.load_snapshot(snapshot(run("x"), seq=0)).outcome is Outcome.DUPLICATE
        assert confirmed(index, R1, "abc") == 3

    def test_a_snapshot_started_anew_forgets_its_first_attempt(self) -> None:
        index = index_of(R1)
        index.apply(batch(0, run("q")))
        index.load_snapshot(snapshot(run("abc"), seq=1, is_last=False))
        index.load_snapshot(snapshot(run("xyz"), seq=2))
        assert (confirmed(index, R1, "abc"), confirmed(index, R1, "xyz")) == (0, 3)

    def test_snapshots_of_more_replicas_than_spare_columns_are_loaded_all_the_same(self) -> None:
        replicas = [ReplicaId(f"r{number}") for number in range(64)]
        index = BlockIndex(max_blocks=1000, max_replicas=64)
        for replica in replicas:
            index.register(replica, FIRST_LIFE)
            index.apply(batch(0, run("q"), replica=replica))
        for last in (False, True):
            for replica in replicas + [ReplicaId("unknown")]:
                part = SnapshotChunk(replica, FIRST_LIFE, 1, int(last), last, (run("ab"),))
                index.load_snapshot(part)
        tiers = index.overlaps(chain("ab")).tiers
        assert (tiers == 2).all()
        assert not index.overlaps(chain("q")).tiers.any()

    def test_a_successor_filled_from_snapshots_answers_alike(self) -> None:
        index = index_of(R1, R2)
        index.apply(batch(0, run("abcdef"), run("abc", tier=Tier.CPU), run("xyz")))
        index.apply(batch(0, run("abcdef"), replica=R2))
        index.apply(batch(1, gone("d", after="abc")))
        successor = index_of(R1, R2)
        for chunk in index.snapshots(chunk_blocks=2):
            assert chunk.blocks <= 2
            result = successor.load_snapshot(SnapshotChunk.unpack(chunk.pack()))
            assert result.outcome is Outcome.APPLIED
        assert successor.blocks_by_replica() == index.blocks_by_replica()
        for text in ("abcdef", "xyz"):
            mine, theirs = index.overlaps(chain(text)), successor.overlaps(chain(text))
            assert np.array_equal(mine.tiers, theirs.tiers)
        assert successor.apply(batch(2, run("g", after="abcdef"))).outcome is Outcome.APPLIED


class TestSpeculation:
    def test_an_expected_block_counts_only_as_speculative(self) -> None:
        index = index_of(R1, R2)
        index.apply(batch(0, run("ab")))
        index.speculate(B1, slot_of(index, R1), chain("abcd"), expires_at=9.0)
        assert (confirmed(index, R1, "abcde"), speculative(index, R1, "abcde")) == (2, 4)
        assert speculative(index, R2, "abcde") == 0

    def test_the_end_of_one_booking_leaves_what_another_expects(self) -> None:
        index = index_of(R1)
        slot = slot_of(index, R1)
        index.speculate(B1, slot, chain("abcd"), expires_at=9.0)
        index.speculate(B2, slot, chain("abxy"), expires_at=9.0)
        index.retract(B1)
        assert (speculative(index, R1, "abcd"), speculative(index, R1, "abxy")) == (2, 4)
        index.retract(B2)
        assert speculative(index, R1, "abxy") == 0

    def test_expiry_removes_only_what_has_expired(self) -> None:
        index = index_of(R1)
        slot = slot_of(index, R1)
        index.speculate(B1, slot, chain("ab"), expires_at=1.0)
        index.speculate(B2, slot, chain("a"), expires_at=2.0)
        index.sweep(now=1.0)
        assert speculative(index, R1, "ab") == 1
        index.sweep(now=2.0)
        assert index.stats().bookings == index.stats().blocks == 0

    def test_an_event_confirms_and_a_later_eviction_is_believed(self) -> None:
        index = index_of(R1)
        index.speculate(B1, slot_of(index, R1), chain("abc"), expires_at=9.0)
        index.apply(batch(0, run("abc")))
        assert confirmed(index, R1, "abc") == 3
        index.apply(batch(1, gone("bc", after="a")))
        assert speculative(index, R1, "abc") == 1

    def test_a_snapshot_confirms_too(self) -> None:
        index = index_of(R1)
        index.apply(batch(0, run("q")))
        index.speculate(B1, slot_of(index, R1), chain("abc"), expires_at=9.0)
        index.load_snapshot(snapshot(run("ab"), seq=1))
        index.apply(batch(2, gone("ab")))
        assert speculative(index, R1, "abc") == 0

    def test_a_booking_that_speculates_again_gives_up_its_first_claim(self) -> None:
        index = index_of(R1, R2)
        index.speculate(B1, slot_of(index, R1), chain("ab"), expires_at=9.0)
        index.speculate(B1, slot_of(index, R2), chain("ab"), expires_at=9.0)
        assert (speculative(index, R1, "ab"), speculative(index, R2, "ab")) == (0, 2)

    def test_more_bookings_than_room_are_left_out_and_counted(self) -> None:
        index = BlockIndex(max_blocks=100, max_replicas=1, max_bookings=1)
        slot = index.register(R1, FIRST_LIFE)
        index.speculate(B1, slot, chain("ab"), expires_at=9.0)
        index.speculate(B2, slot, chain("xy"), expires_at=9.0)
        assert speculative(index, R1, "xy") == 0
        assert index.stats().lost_hints == 1
        index.retract(B2)


class TestCap:
    def test_blocks_stay_within_the_cap_and_the_least_used_prefix_goes_first(self) -> None:
        index = index_of(R1, max_blocks=9)
        index.apply(batch(0, run("abc"), run("def"), run("ghi")))
        index.overlaps(chain("abc"))
        index.apply(batch(1, run("xyz")))
        assert index.stats().blocks <= 9
        assert (confirmed(index, R1, "abc"), confirmed(index, R1, "xyz")) == (3, 3)
        assert confirmed(index, R1, "def") == 0
        assert index.stats().evicted_blocks == 3

    def test_a_long_stream_of_distinct_blocks_does_not_grow_the_index(self) -> None:
        """Fifty times the cap; the table keeps no more than its cap and a bounded rest."""
        index = index_of(R1, max_blocks=2000)
        rng = np.random.default_rng(1)
        for seq in range(400):
            hashes = rng.integers(1, 1 << 63, 250, np.uint64)
            index.apply(batch(seq, StoredRun(Tier.GPU, NO_PARENT, hashes)))
            stats = index.stats()
            assert stats.blocks <= 2000
            assert stats.dead_blocks <= 1000
            assert stats.lost_hints == 0
        index.check_integrity()

    def test_a_chain_is_evicted_from_its_end(self) -> None:
        index = index_of(R1, R2, max_blocks=10)
        index.apply(batch(0, run("abcd")))
        index.apply(batch(0, run("ab"), replica=R2))
        index.overlaps(chain("abcd"))
        index.apply(batch(1, run("0123456")))
        assert confirmed(index, R1, "abcd") == 2


class TestManyPieces:
    def test_overlaps_that_all_differ_are_exact(self) -> None:
        """Every replica holds one block more than the one before: one segment per replica."""
        count = 300
        index = BlockIndex(max_blocks=1000, max_replicas=count)
        text = "".join(chr(1000 + letter) for letter in range(count))
        for depth in range(count):
            replica = ReplicaId(f"r{depth}")
            index.register(replica, FIRST_LIFE)
            index.apply(batch(0, run(text[: depth + 1]), replica=replica))
        index.speculate(B1, Slot(3), chain(text), expires_at=9.0)
        overlap = index.overlaps(chain(text))
        assert overlap.tiers[Tier.GPU].tolist() == list(range(1, count + 1))
        assert overlap.speculative[3] == count
        index.check_integrity()

    def test_a_chain_stored_block_by_block_becomes_one_segment(self) -> None:
        index = index_of(R1)
        text = "abcdefghijkl"
        for seq, letter in enumerate(text):
            index.apply(batch(seq, run(letter, after=text[:seq])))
        assert confirmed(index, R1, text) == len(text)
        assert index.stats().segments == 1

    def test_blocks_given_twice_in_a_run_are_entered_once(self) -> None:
        index = index_of(R1)
        hashes = chain("abc")[[0, 1, 1, 2]]
        index.apply(batch(0, StoredRun(Tier.GPU, NO_PARENT, hashes)))
        assert index.stats().blocks == 3
        assert confirmed(index, R1, "abc") == 3
        index.check_integrity()


class TestReports:
    def test_the_prefix_that_lookups_share_is_the_hottest(self) -> None:
        index = index_of(R1, R2)
        index.apply(batch(0, run("systemabc")))
        index.apply(batch(0, run("systemxyz"), replica=R2))
        for _ in range(16):
            index.overlaps(chain("systemabc"))
        hottest = index.hottest(1)[0]
        assert (hottest.block_hash, hottest.blocks, hottest.lookups) == (
            int(chain("system")[-1]),
            6,
            16,
        )

    def test_counters_name_every_outcome(self) -> None:
        index = index_of(R1)
        index.apply(batch(0, run("a"), gone("zz")))
        index.apply(batch(0))
        stats = index.stats()
        assert (stats.outcomes["applied"], stats.outcomes["duplicate"]) == (1, 1)
        assert stats.unknown_removals == 2

    def test_data_parallel_ranks_are_replicas_of_their_own(self) -> None:
        rank0, rank1 = ReplicaId("r#dp0"), ReplicaId("r#dp1")
        index = index_of(rank0, rank1)
        index.apply(batch(0, run("ab"), replica=rank0))
        assert (confirmed(index, rank0, "ab"), confirmed(index, rank1, "ab")) == (2, 0)
