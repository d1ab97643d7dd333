"""Ranks keep their parts apart and speak of them by one name."""

import time

import numpy as np
import pytest

from replicas.kv.connector.messages import LoadJob, Piece, SaveObject, StepReport
from replicas.kv.connector.pool import HostPool
from replicas.kv.connector.rank_worker import RankWorker
from replicas.kv.connector.transfers import Transfers
from replicas.kv.store.objects import ObjectKey
from router.core.transfer import Keeping
from tests.unit.replicas.kv.connector.engine_pool import MemoryStore

BLOCKS, LAYER_BYTES = 2, 16
KEY = ObjectKey(b"n" * 32, b"h" * 32)
LOAD = LoadJob("r", (Piece(KEY.pack(), "store", BLOCKS, 0, 0, (2, 3)),))
SAVE = SaveObject(KEY.pack(), b"h" * 16, (0, 1), Keeping.REUSE)


class Rank:
    """A worker whose pool is full of `content`."""

    def __init__(self, number: int, store: MemoryStore, content: int) -> None:
        self.layer = np.full((4, LAYER_BYTES), content, np.uint8)
        pool = HostPool([self.layer], bytes([number]) * 32)
        self.worker = RankWorker()
        transfers = Transfers(pool, store, held_bytes=2**20, load_timeout_s=1.0)
        self.worker.attach(transfers, number)

    def save(self) -> StepReport:
        self.worker.save([SAVE])
        while not (report := self.worker.report()):
            time.sleep(0.001)
        return report

    def load(self) -> StepReport:
        self.layer[:] = 0
        self.worker.load([LOAD])
        while self.worker.finished() != {"r"}:
            time.sleep(0.001)
        return self.worker.report()


def test_each_rank_gets_back_what_it_saved_under_the_name_that_all_share() -> None:
    store = MemoryStore()
    ranks = [Rank(number, store, 10 + number) for number in range(3)]
    assert [rank.save().saved for rank in ranks] == [[KEY.pack()]] * 3
    assert len(store.objects) == 3
    for number, rank in enumerate(ranks):
        assert not rank.load()
        assert rank.layer[:, 0].tolist() == [0, 0, 10 + number, 10 + number]


def test_the_first_rank_keeps_its_part_under_the_shared_name() -> None:
    store = MemoryStore()
    for number in range(2):
        Rank(number, store, 1).save()
    assert set(store.objects) == {KEY.pack(), KEY.of_rank(1).pack()}


def test_a_rank_without_its_part_says_so_in_the_shared_name() -> None:
    store = MemoryStore()
    Rank(0, store, 1).save()
    second = Rank(1, store, 2)
    report = second.load()
    assert (report.unusable, report.failed_loads) == ([KEY.pack()], {"r": 2})
    assert second.worker.take_lost() == {2, 3}
    assert second.worker.take_lost() == set()


def test_the_part_of_another_rank_is_never_used() -> None:
    store = MemoryStore()
    Rank(0, store, 1).save()
    store.objects[KEY.of_rank(1).pack()] = store.objects[KEY.pack()]
    second = Rank(1, store, 2)
    assert second.load().failed_loads == {"r": 2}
    assert second.worker.counts() == {"load_damaged": 1}


def test_what_is_alike_at_all_ranks_is_counted_once() -> None:
    store = MemoryStore()
    ranks = [Rank(number, store, 1) for number in range(2)]
    for rank in ranks:
        rank.save()
        rank.load()
    first, second = (rank.worker.counts() for rank in ranks)
    assert (first["loads"], first["loaded_blocks"], first["saved_objects"]) == (1, BLOCKS, 1)
    assert second == {"saved_bytes": first["saved_bytes"]}


def test_a_worker_without_a_pool_refuses_and_lets_the_engine_go_on() -> None:
    worker = RankWorker()
    worker.load([LOAD])
    worker.save([SAVE])
    assert worker.finished() == {"r"}
    assert worker.take_lost() == {2, 3}
    report = worker.report()
    assert (report.unsaved, report.failed_loads) == ([KEY.pack()], {"r": 2})
    assert not worker.report()
    assert worker.finished() == set()
    worker.close()


@pytest.mark.parametrize("rank", [0, 1, 7])
def test_a_ranks_key_leads_back(rank: int) -> None:
    own = KEY.of_rank(rank)
    assert own.of_rank(rank) == KEY
    assert (own == KEY) == (rank == 0)
    assert own.last_hash == KEY.last_hash
