"""Bytes go out and come back the same, or not at all."""

import time

import numpy as np

from replicas.kv.connector.messages import LoadJob, Piece, SaveObject, StepReport
from replicas.kv.connector.transfers import ObjectStore, Transfers
from replicas.kv.store.objects import HEADER_BYTES, ObjectKey
from router.core.transfer import Keeping
from tests.unit.replicas.kv.connector.engine_pool import MemoryStore, pool_of

BLOCKS = 4


def key(number: int) -> bytes:
    return ObjectKey(b"n" * 32, number.to_bytes(32, "big")).pack()


def order(number: int, *block_ids: int) -> SaveObject:
    return SaveObject(key(number), b"h" * 8 * len(block_ids), block_ids, Keeping.REUSE)


def piece(number: int, *block_ids: int, skipped: int = 0, position: int = 0) -> Piece:
    return Piece(key(number), "store", BLOCKS, skipped, position, block_ids)


def wait_for_saves(transfers: Transfers, count: int) -> StepReport:
    total = StepReport()
    while len(total.saved) + len(total.unsaved) < count:
        report = transfers.report()
        total.saved += report.saved
        total.unsaved += report.unsaved
        time.sleep(0.001)
    return total


def wait_for_load(transfers: Transfers) -> set[int]:
    while True:
        done, lost = transfers.finished()
        if done:
            return lost
        time.sleep(0.0005)


def transfers_of(store: ObjectStore, blocks: int = 16) -> tuple[Transfers, list[np.ndarray]]:
    pool, layers = pool_of(blocks)
    return Transfers(pool, store, held_bytes=2**20, load_timeout_s=1.0), layers


def test_saved_blocks_come_back_to_other_places() -> None:
    store = MemoryStore()
    writer, layers = transfers_of(store)
    for number, layer in enumerate(layers):
        layer[:4] = np.arange(4)[:, None] + 10 * number
    writer.save([order(1, 0, 1, 2, 3)])
    layers[0][:] = 0
    assert wait_for_saves(writer, 1).saved == [key(1)]
    reader, target = transfers_of(store)
    reader.load(LoadJob("r", (piece(1, 9, 8, skipped=2),)))
    assert wait_for_load(reader) == set()
    assert target[0][[9, 8], 0].tolist() == [2, 3]
    assert target[1][[9, 8], 0].tolist() == [12, 13]
    assert not target[0][:8].any()


def test_what_the_store_has_is_not_sent_again() -> None:
    store = MemoryStore()
    transfers, _ = transfers_of(store)
    for _ in range(2):
        transfers.save([order(1, 0, 1, 2, 3)])
        wait_for_saves(transfers, 1)
    assert store.offers == 2
    assert transfers.counts["saved_objects"] == 1


def test_nothing_after_a_piece_that_fails_is_used() -> None:
    store = MemoryStore()
    transfers, layers = transfers_of(store)
    layers[0][:] = 5
    transfers.save([order(1, 0, 1, 2, 3), order(3, 0, 1, 2, 3)])
    wait_for_saves(transfers, 2)
    layers[0][:] = 0
    job = LoadJob("r", (piece(1, 0, 1, 2, 3), piece(2, 4, 5, 6, 7), piece(3, 8, 9, 10, 11)))
    transfers.load(job)
    assert wait_for_load(transfers) == {4, 5, 6, 7, 8, 9, 10, 11}
    report = transfers.report()
    assert (report.unusable, report.failed_loads) == ([key(2), key(3)], {"r": 8})


def test_a_damaged_object_leaves_the_store() -> None:
    store = MemoryStore()
    transfers, _ = transfers_of(store)
    transfers.save([order(1, 0, 1, 2, 3)])
    wait_for_saves(transfers, 1)
    store.objects[key(1)].data[HEADER_BYTES] ^= 1
    transfers.load(LoadJob("r", (piece(1, 0, 1, 2, 3),)))
    assert wait_for_load(transfers) == {0, 1, 2, 3}
    assert store.objects == {}
    assert transfers.counts["load_damaged"] == 1


class DeadStore(MemoryStore):
    def offer(self, objects: object) -> list[bool]:
        raise ConnectionError("gone")


def test_a_dead_store_loses_saves_and_nothing_else() -> None:
    transfers, _ = transfers_of(DeadStore())
    for number in range(3):
        transfers.save([order(number, 0, 1, 2, 3)])
        assert wait_for_saves(transfers, 1).unsaved == [key(number)]
    assert transfers.counts["save_failed"] == 3


def test_host_memory_is_bounded() -> None:
    pool, _ = pool_of(16)
    transfers = Transfers(pool, MemoryStore(), held_bytes=100, load_timeout_s=1.0)
    transfers.save([order(1, 0, 1, 2, 3)])
    assert transfers.report().unsaved == [key(1)]
    assert transfers.counts["save_dropped"] == 1
