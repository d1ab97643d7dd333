"""The log knows each block's changes and which of them the index had been told by a batch."""

from collections.abc import Iterable

import numpy as np

from replicas.kv.event_log import EventLog
from replicas.kv.mirror import Mirror
from router.core.events import EventBatch, StoredRun
from router.core.hashing import hash_blocks
from router.core.types import Incarnation, ReplicaId, Tier
from tests.unit.replicas.kv.engine_events import BLOCK_SIZE, CLEARED, removed, stored, tokens


class Told:
    """A mirror with its log; `told` gives the numbers of batches."""

    def __init__(self, log: EventLog | None = None) -> None:
        self.log = log or EventLog()
        self.mirror = Mirror(ReplicaId("R1"), Incarnation(1), BLOCK_SIZE, log=self.log)

    def tell(self, max_blocks: int = 100) -> int:
        return self.mirror.next_batch(max_blocks).seq

    def held(self, text: str, seq: int) -> list[bool]:
        """Of each block of the chain, whether the index had been told of it."""
        return [self.log.was_held(h, seq, h in self.mirror) for h in chain(text)]

    def times(self, text: str, seq: int) -> list[list[float]]:
        return [[c.at_s for c in self.log.changes_after(h, seq)] for h in chain(text)]


def chain(text: str) -> Iterable[int]:
    packed = np.array(tokens(text), "<u4").tobytes()
    return [int(h) for h in hash_blocks(packed, BLOCK_SIZE)]


def test_a_block_counts_as_told_from_the_batch_that_names_it() -> None:
    both = Told()
    nothing = both.tell()
    both.mirror.apply([stored("abc")], at_s=1.0)
    part, rest = both.tell(max_blocks=2), both.tell()
    assert both.held("abc", nothing) == [False] * 3
    assert both.held("abc", part) == [True, True, False]
    assert both.held("abc", rest) == [True] * 3
    assert both.times("abc", part) == [[], [], [1.0]]


def test_the_time_of_each_change_is_the_engines() -> None:
    both = Told()
    both.mirror.apply([stored("ab")], at_s=1.0)
    seq = both.tell()
    both.mirror.apply(removed("b", after="a"), at_s=2.0)
    both.mirror.apply([stored("b", after="a")], at_s=3.0)
    assert both.times("ab", seq) == [[], [2.0, 3.0]]
    assert both.held("ab", both.tell()) == [True, True]


def test_clearing_tells_of_all_blocks_but_those_stored_after_it() -> None:
    both = Told()
    both.mirror.apply([stored("abc")])
    first = both.tell()
    both.mirror.apply([stored("d", after="abc"), CLEARED, stored("ab")])
    cleared, restored = both.tell(max_blocks=1), both.tell()
    assert both.held("abcd", first) == [True, True, True, False]
    assert both.held("abcd", cleared) == [True, False, False, False]
    assert both.held("abcd", restored) == [True, True, False, False]


def test_a_snapshot_tells_everything_under_a_number_of_its_own() -> None:
    both = Told()
    both.mirror.apply([stored("ab")])
    before = both.tell()
    both.mirror.apply([*removed("b", after="a"), stored("x")])
    (chunk,) = both.mirror.snapshot(10)
    assert both.held("ab", before) == [True, True]
    assert both.held("ab", chunk.seq) == [True, False]
    assert both.held("x", chunk.seq) == [True]
    assert both.tell() == chunk.seq + 1


def test_other_copies_and_other_tiers_are_no_changes() -> None:
    both = Told()
    both.mirror.apply([stored("a"), stored("a"), stored("a", medium="CPU")], at_s=1.0)
    both.mirror.apply([*removed("a"), *removed("a", medium="CPU")], at_s=2.0)
    assert both.times("a", -1) == [[1.0]]


def test_blocks_that_changed_longest_ago_are_forgotten_and_taken_as_they_are() -> None:
    both = Told(EventLog(max_blocks=2))
    both.mirror.apply([stored("abc")], at_s=1.0)
    both.log.note_batch(EventBatch(ReplicaId("R1"), Incarnation(1), 0, cleared=(Tier.GPU,)))
    run = StoredRun(Tier.GPU, 0, np.array(list(chain("abc")), np.uint64))
    both.log.note_batch(EventBatch(ReplicaId("R1"), Incarnation(1), 1, (run,)))
    assert both.times("abc", -1) == [[], [1.0], [1.0]]
    assert both.held("abc", -1) == [True, False, False]
