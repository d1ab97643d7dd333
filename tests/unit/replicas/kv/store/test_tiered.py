"""One store of several tiers: what memory lets go can still be found."""

import asyncio
import random
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from replicas.kv.store.contents import StoreContents
from replicas.kv.store.disk_tier import DiskTier
from replicas.kv.store.objects import Bytes
from replicas.kv.store.tiered import TieredContents
from tests.unit.replicas.kv.store.stored_objects import (
    OBJECT_BYTES,
    CountedTier,
    Heap,
    change_file,
    head_of,
    key_of,
    number_in,
    sealed,
)

ROOM = 2
LIMIT_S = 5.0


Store = TieredContents[Bytes]


def store_on(*tiers: CountedTier | DiskTier, waiting: int = 100) -> Store:
    memory: StoreContents[Bytes] = StoreContents(ROOM * OBJECT_BYTES, 1000)
    return TieredContents(memory, Heap(), tiers, waiting_bytes=waiting * OBJECT_BYTES)


@pytest.fixture
def disk() -> CountedTier:
    return CountedTier("disk", room=100)


@pytest.fixture
def store(disk: CountedTier) -> Iterator[Store]:
    store = store_on(disk)
    yield store
    store.close()


def put(store: Store, *numbers: int, is_for_reuse: bool = True) -> None:
    for number in numbers:
        store.put(head_of(number, is_for_reuse=is_for_reuse), sealed(number))
    store.flush(LIMIT_S)


def found(store: Store, *numbers: int) -> list[int | None]:
    return [number_in(data) for data in fetched(store, *numbers)]


def fetched(store: Store, *numbers: int, limit_s: float = LIMIT_S) -> list[Bytes | None]:
    return asyncio.run(store.fetch([key_of(number) for number in numbers], limit_s))


def test_what_memory_lets_go_comes_back_on_a_hit(store: Store, disk: CountedTier) -> None:
    put(store, 1, 2, 3, 4)
    assert (len(store), store.find(key_of(1))) == (ROOM, None)
    assert found(store, 1, 4, 9) == [1, 4, None]
    assert number_in(store.find(key_of(1))) == 1
    counts = store.counts()
    assert (counts["memory_hits"], counts["memory_misses"]) == (2, 3)
    assert (counts["disk_hits"], counts["disk_objects"]) == (1, 3)


def test_objects_of_all_tiers_are_known_and_not_wanted_again(store: Store) -> None:
    put(store, 1, 2, 3, 4)
    assert sorted(item.key for item in store.objects()) == [key_of(n) for n in (1, 2, 3, 4)]
    assert [store.offer(head_of(number)) for number in (1, 4, 5)] == [False, False, True]


def test_moving_between_tiers_is_no_change(store: Store) -> None:
    put(store, 1, 2, 3, 4)
    assert set(store.take_changes().added) == {key_of(n) for n in (1, 2, 3, 4)}
    found(store, 1, 2)
    changes = store.take_changes()
    assert (changes.added, changes.removed) == ({}, {})


def test_what_leaves_the_last_tier_is_a_change() -> None:
    store = store_on()
    put(store, 1, 2)
    store.take_changes()
    put(store, 3)
    changes = store.take_changes()
    assert (set(changes.added), set(changes.removed)) == ({key_of(3)}, {key_of(1)})
    store.close()


def test_what_a_tier_loses_is_still_here_while_memory_has_it(
    store: Store, disk: CountedTier
) -> None:
    put(store, 1, 2, 3)
    found(store, 1)
    disk.held.clear()
    store.take_changes()
    assert found(store, 1) == [1]
    store.put(head_of(9), sealed(9))
    assert found(store, 2) == [None]
    assert set(store.take_changes().removed) == {key_of(2)}


def test_discarding_reaches_every_tier(store: Store, disk: CountedTier) -> None:
    put(store, 1, 2, 3)
    store.take_changes()
    store.discard([key_of(1), key_of(3), key_of(9)])
    store.flush(LIMIT_S)
    assert found(store, 1, 2, 3) == [None, 2, None]
    assert key_of(1) not in disk.held
    assert set(store.take_changes().removed) == {key_of(1), key_of(3)}


def test_what_is_discarded_on_its_way_up_does_not_stay(store: Store, disk: CountedTier) -> None:
    put(store, 1, 2, 3)
    disk.asked.clear()
    disk.gate.clear()
    finder = threading.Thread(target=lambda: found(store, 1))
    finder.start()
    disk.asked.wait(LIMIT_S)
    store.discard([key_of(1)])
    disk.gate.set()
    finder.join(LIMIT_S)
    assert store.get(key_of(1)) is None
    assert found(store, 1) == [None]


def test_many_who_ask_at_once_share_one_read(store: Store, disk: CountedTier) -> None:
    put(store, 1, 2, 3)
    disk.gate.clear()
    results: list[int | None] = []
    threads = [threading.Thread(target=lambda: results.extend(found(store, 1))) for _ in range(8)]
    for thread in threads:
        thread.start()
    disk.gate.set()
    for thread in threads:
        thread.join(LIMIT_S)
    assert results == [1] * 8
    assert disk.calls.count(("read", key_of(1))) == 1


def test_a_tier_that_takes_too_long_is_a_miss_for_who_asks(store: Store, disk: CountedTier) -> None:
    put(store, 1, 2, 3)
    disk.gate.clear()
    assert fetched(store, 1, limit_s=0.01) == [None]
    disk.gate.set()
    assert found(store, 1) == [1]


def test_nothing_else_waits_for_a_tier(store: Store, disk: CountedTier) -> None:
    put(store, 1, 2, 3)
    disk.gate.clear()
    store.put(head_of(4), sealed(4))
    assert found(store, 4) == [4]
    store.discard([key_of(4)])
    assert {item.key for item in store.objects()} == {key_of(n) for n in (1, 2, 3)}
    disk.gate.set()


def test_claimed_objects_leave_memory_last(store: Store) -> None:
    put(store, 1, 2)
    store.claim([key_of(1)], is_claimed=True)
    put(store, 3)
    assert number_in(store.find(key_of(1))) == 1
    assert store.find(key_of(2)) is None


def test_what_is_offered_for_reuse_stays_for_it_in_all_tiers(store: Store) -> None:
    put(store, 1, 2, 3, is_for_reuse=False)
    for number in (1, 3):
        store.offer(head_of(number))
    assert {item.key for item in store.objects() if item.is_for_reuse} == {key_of(1), key_of(3)}


def test_another_life_starts_with_what_the_disk_has(tmp_path: Path) -> None:
    tier = DiskTier(tmp_path / "kv", 100 * OBJECT_BYTES)
    store = store_on(tier)
    put(store, 1, 2, 3, 4)
    store.close()
    change_file(tmp_path, 2, lambda data: data[:-3] + b"???")
    store = store_on(DiskTier(tmp_path / "kv", 100 * OBJECT_BYTES))
    store.flush(LIMIT_S)
    assert set(store.take_changes().added) == {key_of(1), key_of(2)}
    assert found(store, 1, 2) == [1, None]
    assert set(store.take_changes().removed) == {key_of(2)}
    store.close()


def test_thousands_of_steps_from_many_threads_never_bring_another_object(tmp_path: Path) -> None:
    store = store_on(
        DiskTier(tmp_path / "kv", 5 * OBJECT_BYTES), CountedTier("redis", 4), waiting=3
    )
    wrong: list[tuple[int, int]] = []

    def play(seed: int) -> None:
        draw = random.Random(seed)
        for _ in range(400):
            number = draw.randrange(1, 20)
            step = draw.randrange(8)
            if step < 4:
                (got,) = found(store, number)
                if got not in (None, number):
                    wrong.append((number, got))
            elif step < 7:
                store.put(head_of(number), sealed(number))
            else:
                store.discard([key_of(number)])

    threads = [threading.Thread(target=play, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    store.flush(LIMIT_S)
    assert wrong == []
    changes = store.take_changes()
    assert set(changes.added) == {item.key for item in store.objects()}
    assert changes.removed == {}
    store.close()
