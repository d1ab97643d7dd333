"""What falls lands in the nearest tier with room, and nothing waits for it."""

from collections.abc import Iterator, Sequence

import pytest

from replicas.kv.store.contents import StoredObject
from replicas.kv.store.lower_tiers import LowerTiers
from tests.unit.replicas.kv.store.stored_objects import (
    OBJECT_BYTES,
    CountedTier,
    head_of,
    key_of,
    number_in,
    sealed,
)


class Notes:
    def __init__(self) -> None:
        self.arrivals: list[int] = []
        self.departures: list[int] = []

    def arrived(self, stored: StoredObject) -> None:
        self.arrivals.append(number_of(stored.key))

    def departed(self, stored: StoredObject) -> None:
        self.departures.append(number_of(stored.key))


def number_of(key: bytes) -> int:
    return int.from_bytes(key[32:], "big")


class Rig:
    def __init__(self, tiers: Sequence[CountedTier], waiting: int = 100) -> None:
        self.notes = Notes()
        self.below = LowerTiers(tiers, waiting_bytes=waiting * OBJECT_BYTES, watcher=self.notes)
        self.looks = 0

    def take(self, *numbers: int) -> list[bool]:
        return [self.below.take(head_of(n), lambda n=n: self._look(n)) for n in numbers]

    def fetch(self, number: int) -> int | None:
        return number_in(self.below.fetch(key_of(number)).result(5))

    def settle(self) -> None:
        self.below.flushed().result(5)

    def _look(self, number: int) -> object:
        self.looks += 1
        return sealed(number)


@pytest.fixture
def disk() -> CountedTier:
    return CountedTier("disk", room=2)


@pytest.fixture
def redis() -> CountedTier:
    return CountedTier("redis", room=2)


@pytest.fixture
def rig(disk: CountedTier, redis: CountedTier) -> Iterator[Rig]:
    rig = Rig([disk, redis])
    yield rig
    rig.below.close()


def held(tier: CountedTier) -> list[int]:
    return [number_of(key) for key in tier.held]


def test_what_a_tier_lets_go_falls_to_the_next_and_then_out(
    rig: Rig, disk: CountedTier, redis: CountedTier
) -> None:
    rig.take(1, 2, 3, 4, 5)
    rig.settle()
    assert (held(disk), held(redis)) == ([4, 5], [2, 3])
    assert rig.notes.departures == [1]
    assert [number_of(item.key) for item in rig.below.objects()] == [2, 3, 4, 5]
    assert (rig.below.counts["disk"].evictions, rig.below.counts["redis"].evictions) == (3, 1)


def test_any_tier_answers(rig: Rig) -> None:
    rig.take(1, 2, 3)
    rig.settle()
    assert [rig.fetch(number) for number in (1, 2, 3, 4)] == [1, 2, 3, None]
    counts = rig.below.counts
    assert (counts["disk"].hits, counts["disk"].misses, counts["redis"].hits) == (2, 1, 1)
    assert counts["redis"].read_bytes == OBJECT_BYTES


def test_what_is_below_already_is_not_written_again(rig: Rig, disk: CountedTier) -> None:
    rig.take(1)
    rig.settle()
    assert rig.take(1) == [True]
    rig.settle()
    assert (len(disk.calls), rig.looks) == (1, 1)


def test_what_waits_can_be_read_and_is_bounded(disk: CountedTier) -> None:
    rig = Rig([disk], waiting=2)
    disk.gate.clear()
    assert rig.take(1, 2, 3) == [True, True, False]
    assert rig.below.counts["disk"].dropped == 1
    assert rig.below.find(key_of(3)) is None
    fetched = rig.below.fetch(key_of(2))
    disk.gate.set()
    assert number_in(fetched.result(5)) == 2
    rig.settle()
    assert rig.take(3) == [True]
    rig.below.close()


def test_reads_overtake_writes() -> None:
    disk = CountedTier("disk", room=9)
    rig = Rig([disk])
    rig.take(1)
    rig.settle()
    disk.gate.clear()
    disk.asked.clear()
    rig.take(2, 3)
    disk.asked.wait(5)
    fetched = rig.below.fetch(key_of(1))
    disk.gate.set()
    assert number_in(fetched.result(5)) == 1
    rig.settle()
    order = [("write", 1), ("write", 2), ("read", 1), ("write", 3)]
    assert [(what, number_of(key)) for what, key in disk.calls] == order
    rig.below.close()


def test_what_is_discarded_while_it_waits_is_never_written(rig: Rig, disk: CountedTier) -> None:
    disk.gate.clear()
    rig.take(1, 2)
    rig.below.discard([key_of(2)])
    disk.gate.set()
    rig.settle()
    assert held(disk) == [1]
    rig.below.discard([key_of(1)])
    rig.settle()
    assert held(disk) == []
    assert rig.notes.departures == []


def test_what_is_discarded_and_comes_again_is_written(rig: Rig, disk: CountedTier) -> None:
    disk.gate.clear()
    rig.take(1, 2)
    rig.below.discard([key_of(2)])
    rig.take(2)
    disk.gate.set()
    rig.settle()
    assert held(disk) == [1, 2]
    assert rig.fetch(2) == 2


def test_a_broken_tier_is_passed_over_and_counted(
    rig: Rig, disk: CountedTier, redis: CountedTier
) -> None:
    disk.is_broken = True
    rig.take(1)
    rig.settle()
    assert (held(disk), held(redis)) == ([], [1])
    assert rig.fetch(1) == 1
    redis.is_broken = True
    rig.take(2)
    rig.settle()
    assert rig.notes.departures == [2]
    assert rig.fetch(1) is None
    assert rig.notes.departures == [2, 1]
    assert (rig.below.counts["disk"].failures, rig.below.counts["disk"].dropped) == (4, 2)


def test_bytes_that_cannot_be_read_any_more_are_lost_alone(rig: Rig, disk: CountedTier) -> None:
    def gone() -> object:
        raise ConnectionError("the owner died")

    assert rig.below.take(head_of(1), gone)
    rig.take(2)
    rig.settle()
    assert held(disk) == [2]
    assert rig.notes.departures == [1]


def test_what_is_there_from_earlier_arrives(disk: CountedTier, redis: CountedTier) -> None:
    disk.write(head_of(1), sealed(1))
    redis.write(head_of(1), sealed(1))
    redis.write(head_of(2), sealed(2))
    rig = Rig([disk, redis])
    rig.settle()
    assert rig.notes.arrivals == [1, 2]
    assert rig.fetch(2) == 2
    rig.below.close()


def test_without_tiers_everything_falls_through() -> None:
    rig = Rig([])
    assert rig.take(1) == [False]
    assert rig.below.counts == {}
    rig.below.close()
