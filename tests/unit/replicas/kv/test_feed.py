"""The feed hands over each engine batch once and in order, or says what it could not get."""

from replicas.kv.events import EngineBatch, KVEvent
from replicas.kv.feed import Arrival, EngineFeed
from replicas.kv.mirror import Mirror
from router.core.types import Incarnation, ReplicaId
from tests.unit.replicas.kv.engine_events import BLOCK_SIZE, stored


def new_feed() -> tuple[EngineFeed, Mirror]:
    mirror = Mirror(ReplicaId("R1"), Incarnation(1), BLOCK_SIZE)
    return EngineFeed(mirror), mirror


LETTERS = "abcdefgh"


def batch(*events: KVEvent, at_s: float = 0.0) -> EngineBatch:
    return EngineBatch(at_s, events, data_parallel_rank=0, skipped=0)


BATCHES = [
    batch(stored(letter, after=LETTERS[:place]), at_s=place) for place, letter in enumerate(LETTERS)
]


def test_a_gap_is_filled_by_replay_before_what_came_later_and_only_once() -> None:
    feed, mirror = new_feed()
    for seq in (0, 1, 3, 4):
        feed.live(seq, BATCHES[seq])
    assert (feed.missing_from, len(mirror), feed.counters.gaps) == (2, 2, 1)
    arrivals = [feed.replayed(seq, BATCHES[seq]) for seq in (1, 2, 3, 4)]
    assert arrivals == [Arrival.DUPLICATE, Arrival.APPLIED, Arrival.DUPLICATE, Arrival.DUPLICATE]
    assert feed.replay_ended()
    assert (feed.missing_from, len(mirror), mirror.is_partial) == (None, 5, False)
    assert feed.live(5, BATCHES[5]) is Arrival.APPLIED


def test_without_replay_what_is_missing_empties_the_mirror_and_marks_it_partial() -> None:
    feed, mirror = new_feed()
    feed.live(0, BATCHES[0])
    assert feed.live(2, batch(stored("xyz"), at_s=2)) is Arrival.HELD
    assert not feed.replay_ended()
    assert (len(mirror), mirror.is_partial, feed.counters.lost) == (3, True, 1)
    assert feed.live(3, batch(at_s=3)) is Arrival.APPLIED


def test_a_replay_buffer_that_no_longer_reaches_back_counts_as_lost() -> None:
    """Asked from 1, the engine silently starts at 3."""
    feed, mirror = new_feed()
    feed.live(0, BATCHES[0])
    feed.live(4, batch(stored("xy"), at_s=4))
    assert feed.replayed(3, batch(stored("pq"), at_s=3)) is Arrival.HELD
    assert not feed.replay_ended()
    assert (len(mirror), mirror.is_partial) == (4, True)


def test_a_subscriber_that_came_late_asks_from_the_start() -> None:
    feed, _ = new_feed()
    feed.live(7, batch())
    assert feed.missing_from == 0


def test_numbers_that_begin_anew_mean_an_empty_engine() -> None:
    feed, mirror = new_feed()
    for seq in range(3):
        feed.live(seq, BATCHES[seq])
    assert feed.live(0, batch(stored("x"), at_s=9)) is Arrival.RESTARTED
    assert (len(mirror), mirror.is_partial, feed.counters.restarts) == (1, False, 1)
    assert feed.live(1, batch(at_s=10)) is Arrival.APPLIED


def test_a_restart_of_which_the_start_was_missed_leaves_the_mirror_partial() -> None:
    feed, mirror = new_feed()
    for seq in range(4):
        feed.live(seq, BATCHES[seq])
    assert feed.live(2, batch(stored("x"), at_s=9)) is Arrival.RESTARTED
    assert (len(mirror), mirror.is_partial) == (1, True)


def test_doubled_and_late_batches_change_nothing() -> None:
    """ZeroMQ neither doubles nor reorders; a relay between engine and replica might."""
    feed, mirror = new_feed()
    for seq in (0, 1, 3):
        feed.live(seq, BATCHES[seq])
    feed.replayed(2, BATCHES[2])
    arrivals = [feed.live(seq, BATCHES[seq]) for seq in (2, 3, 0)]
    assert arrivals == [Arrival.DUPLICATE] * 3
    assert (len(mirror), mirror.is_partial, feed.counters.restarts) == (4, False, 0)


def test_batches_held_for_a_replay_that_never_comes_are_bounded() -> None:
    feed, mirror = new_feed()
    for seq in range(1, 10_003):
        feed.live(seq, batch(at_s=seq))
    assert feed.missing_from is None
    assert mirror.is_partial
