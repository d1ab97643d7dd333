"""Whatever happens to stored objects: the right bytes, or a miss that is told; never an error."""

import os
import time
from collections import Counter
from pathlib import Path
from random import Random

import numpy as np
import pytest

from replicas.kv.connector.messages import LoadJob, Piece, SaveObject
from replicas.kv.connector.transfers import ObjectStore, Transfers
from replicas.kv.store import objects
from replicas.kv.store.objects import ObjectKey, object_bytes
from router.core.transfer import Keeping
from tests.unit.replicas.kv.connector.engine_pool import (
    LAYER_BYTES,
    LAYERS,
    MemoryStore,
    pool_of,
)
from tests.unit.replicas.kv.connector.faulty_stores import FAULTS, FaultyStore, StoreOnDisk
from tests.unit.replicas.kv.store.stored_objects import NoChecksum

BLOCKS, OBJECTS = 4, 8
UNTOUCHED = 255
OBJECT_BYTES = object_bytes(BLOCKS, LAYERS * LAYER_BYTES)


def key(number: int) -> bytes:
    return ObjectKey(b"n" * 32, number.to_bytes(32, "big")).pack()


class Connector:
    """An engine's worker, whose pool has places for two objects at a time."""

    def __init__(self, store: ObjectStore) -> None:
        pool, self.layers = pool_of(2 * BLOCKS)
        self.transfers = Transfers(pool, store, held_bytes=2**20, load_timeout_s=5.0)

    def save(self, number: int) -> bool:
        for layer in self.layers:
            layer[:BLOCKS] = np.arange(BLOCKS)[:, None] + 10 * number
        ids = tuple(range(BLOCKS))
        self.transfers.save([SaveObject(key(number), b"h" * 8 * BLOCKS, ids, Keeping.REUSE)])
        while True:
            report = self.transfers.report()
            if report.saved or report.unsaved:
                return report.saved == [key(number)]
            time.sleep(0.0001)

    def load(self, *numbers: int) -> tuple[set[int], list[list[int]]]:
        """The blocks that were lost, and what lies in each block."""
        for layer in self.layers:
            layer[:] = UNTOUCHED
        pieces = [
            Piece(key(number), "store", BLOCKS, 0, BLOCKS * place, ids_at(place))
            for place, number in enumerate(numbers)
        ]
        self.transfers.load(LoadJob("r", tuple(pieces)))
        while not (outcome := self.transfers.finished())[0]:
            time.sleep(0.0001)
        assert outcome[0] == {"r"}
        content = np.concatenate(self.layers, axis=1)
        return outcome[1], [sorted(set(row.tolist())) for row in content]


def ids_at(place: int) -> tuple[int, ...]:
    return tuple(range(BLOCKS * place, BLOCKS * (place + 1)))


def wrong_blocks(numbers: tuple[int, int], lost: set[int], content: list[list[int]]) -> list[int]:
    """Blocks that were not told to be lost and hold something else than was saved."""
    return [
        block
        for block in range(2 * BLOCKS)
        if block not in lost and content[block] != [10 * numbers[block // BLOCKS] + block % BLOCKS]
    ]


def two_of(random: Random) -> tuple[int, int]:
    return random.randrange(OBJECTS), random.randrange(OBJECTS)


def clean_store() -> MemoryStore:
    store = MemoryStore()
    writer = Connector(store)
    assert all(writer.save(number) for number in range(OBJECTS))
    return store


@pytest.mark.parametrize("seed", range(2))
def test_thousands_of_faulted_loads_never_bring_a_wrong_byte(seed: int) -> None:
    """3,500 loads a seed."""
    clean, random = clean_store(), Random(seed)
    faulty = FaultyStore(clean, random)
    connector = Connector(faulty)
    losses: Counter[str] = Counter()
    for _ in range(3500):
        faulty.objects = dict(clean.objects)
        numbers = two_of(random)
        lost, content = connector.load(*numbers)
        assert wrong_blocks(numbers, lost, content) == [], faulty.fault
        losses[faulty.fault] += bool(lost)
    assert losses["none"] == 0
    assert all(losses[fault] > 100 for fault in FAULTS if fault != "none")
    counts = connector.transfers.counts
    assert counts["load_damaged"] > 1000
    assert counts["load_missing"] > 100
    assert counts["load_failed"] > 500


def test_thousands_of_loads_from_a_damaged_disk_never_bring_a_wrong_byte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """3,000 loads, most from files: damaged, gone, cut; a disk that is full; a store that starts
    again."""
    random = Random(9)
    store = StoreOnDisk(tmp_path / "kv", OBJECT_BYTES, room=2, files=OBJECTS)
    monkeypatch.setattr(os, "fsync", store.synced)
    connector = Connector(store)
    losses = 0
    for step in range(3000):
        numbers = two_of(random)
        lost, content = connector.load(*numbers)
        assert wrong_blocks(numbers, lost, content) == [], step
        losses += bool(lost)
        for number in numbers if lost else ():
            connector.save(number)
        store.settle()
        if step % 3 == 0:
            store.damage(random)
        if step % 50 == 0:
            store.is_full = not store.is_full
        if step % 100 == 0:
            store.restart()
    store.close()
    assert 300 < losses < 2700


def test_with_the_checksum_off_wrong_bytes_come_through(monkeypatch: pytest.MonkeyPatch) -> None:
    """That the tests above can fail."""
    random = Random(5)
    monkeypatch.setattr(objects, "xxh3_128", NoChecksum)
    unchecked = clean_store()
    faulty = FaultyStore(unchecked, random)
    connector = Connector(faulty)
    wrong: Counter[str] = Counter()
    for _ in range(1000):
        numbers = two_of(random)
        faulty.objects = dict(unchecked.objects)
        lost, content = connector.load(*numbers)
        wrong[faulty.fault] += len(wrong_blocks(numbers, lost, content))
    assert wrong["flip"] > 10
    assert wrong["zero"] > 10
    assert wrong["none"] == 0
