"""What is loaded and what is saved, decided without asking anybody."""

import numpy as np
import pytest

from replicas.kv.connector.chains import RouterChain
from replicas.kv.connector.messages import StepReport
from replicas.kv.connector.planner import KNOWN_FOR_S, Computed, TransferPlanner
from replicas.kv.store.objects import ObjectKey
from router.core.hashing import hash_blocks, salt, unpack_hashes
from router.core.transfer import Keeping, StoredRun, TransferRequest
from router.core.types import StoreId

WIDTH, BLOCK_SIZE = 2, 4
NAMESPACE = b"n" * 32
TOKENS = list(range(100, 140))
HASHES = [index.to_bytes(32, "big") for index in range(10)]
IDS = list(range(50, 60))
STORE = StoreId("store")


def run(first: int, hashes: list[bytes] = HASHES, namespace: bytes = NAMESPACE) -> StoredRun:
    key = ObjectKey(namespace, hashes[first + WIDTH - 1]).pack()
    return StoredRun(first, WIDTH, STORE, key)


def planner_with(
    *loads: StoredRun, keeping: Keeping = Keeping.NOTHING, reuse_blocks: int = 0
) -> TransferPlanner:
    planner = TransferPlanner(NAMESPACE, WIDTH)
    transfer = TransferRequest(loads, keeping, reuse_blocks)
    planner.add("r", transfer, RouterChain(BLOCK_SIZE, "salt"))
    return planner


def computed(blocks: int) -> Computed:
    return Computed(blocks, HASHES, IDS, TOKENS)


def test_stored_blocks_after_the_held_ones_are_loaded() -> None:
    planner = planner_with(run(0), run(2), run(4))
    assert planner.match("r", HASHES, 3, 9) == 3
    planner.place("r", 3, IDS)
    (job,) = planner.take().loads
    assert [(p.skipped, p.position, p.block_ids) for p in job.pieces] == [
        (1, 3, (53,)),
        (0, 4, (54, 55)),
    ]
    assert planner.take().loads == ()


def test_the_last_token_is_left_to_compute() -> None:
    planner = planner_with(run(0), run(2))
    assert planner.match("r", HASHES, 0, 3) == 3
    planner.place("r", 3, IDS)
    assert [p.block_ids for p in planner.take().loads[0].pieces] == [(50, 51), (52,)]


def test_a_gap_ends_the_plan() -> None:
    planner = planner_with(run(0), run(4))
    assert planner.match("r", HASHES, 0, 9) == 2
    assert planner_with(run(2)).match("r", HASHES, 0, 9) == 0


@pytest.mark.parametrize(
    "wrong",
    [
        run(0, HASHES[1:]),
        run(0, namespace=b"m" * 32),
        StoredRun(0, WIDTH + 1, STORE, run(0).key),
        StoredRun(8, 4, STORE, run(0).key),
    ],
    ids=["prefix", "namespace", "width", "length"],
)
def test_an_object_of_anything_else_is_not_loaded(wrong: StoredRun) -> None:
    assert planner_with(wrong).match("r", HASHES, 0, 9) == 0


def test_a_plan_that_is_not_placed_is_made_again() -> None:
    planner = planner_with(run(0))
    assert planner.match("r", HASHES, 0, 9) == planner.match("r", HASHES, 0, 9) == 2
    assert planner.match("r", HASHES, 2, 9) == 0
    planner.place("r", 2, IDS)
    assert planner.take().loads == ()


def test_whole_objects_are_saved_once_as_they_fill() -> None:
    planner = planner_with(keeping=Keeping.CONTEXT)
    planner.fill("r", computed(3), 0.0)
    planner.fill("r", computed(5), 0.0)
    saves = planner.take().saves
    assert [save.block_ids for save in saves] == [(50, 51), (52, 53)]
    assert [save.key for save in saves] == [run(0).key, run(2).key]
    packed = np.array(TOKENS, "<u4").tobytes()
    expected = hash_blocks(packed, BLOCK_SIZE, salt("salt"))
    assert unpack_hashes(saves[1].hashes).tolist() == expected[2:4].tolist()


def test_only_what_was_seen_before_is_saved_for_reuse() -> None:
    planner = planner_with(keeping=Keeping.REUSE, reuse_blocks=5)
    planner.fill("r", computed(8), 0.0)
    assert [save.block_ids for save in planner.take().saves] == [(50, 51), (52, 53)]


def test_nothing_is_saved_where_nothing_is_kept() -> None:
    planner = planner_with(run(0))
    planner.fill("r", computed(8), 0.0)
    assert planner.take().saves == ()


def test_the_engine_steps_until_the_last_save_is_told() -> None:
    planner = planner_with(keeping=Keeping.CONTEXT)
    planner.fill("r", computed(4), 0.0)
    assert planner.is_saving
    planner.hear(StepReport(saved=[run(0).key]), 0.0)
    assert planner.is_saving
    planner.hear(StepReport(unsaved=[run(2).key]), 0.0)
    assert not planner.is_saving


@pytest.mark.parametrize("is_saved", [True, False], ids=["all have it", "one has not"])
def test_an_object_is_there_once_every_rank_has_its_part(is_saved: bool) -> None:
    planner = TransferPlanner(NAMESPACE, WIDTH, ranks=2)

    def saves(name: str, now: float) -> int:
        transfer = TransferRequest((), Keeping.CONTEXT)
        planner.add(name, transfer, RouterChain(BLOCK_SIZE, "salt"))
        planner.fill(name, computed(2), now)
        return len(planner.take().saves)

    assert saves("r", 0.0) == 1
    planner.hear(StepReport(saved=[run(0).key]), 0.0)
    assert planner.is_saving
    other = StepReport(saved=[run(0).key]) if is_saved else StepReport(unsaved=[run(0).key])
    planner.hear(other, 0.0)
    assert not planner.is_saving
    assert saves("s", 1.0) == (0 if is_saved else 1)


def test_a_part_that_was_not_saved_counts_whichever_rank_tells_first() -> None:
    planner = TransferPlanner(NAMESPACE, WIDTH, ranks=2)
    for name, is_first in (("r", True), ("s", False)):
        transfer = TransferRequest((), Keeping.CONTEXT)
        planner.add(name, transfer, RouterChain(BLOCK_SIZE, "salt"))
        planner.fill(name, computed(2), 0.0)
        assert len(planner.take().saves) == 1
        told = [StepReport(unsaved=[run(0).key]), StepReport(saved=[run(0).key])]
        for report in told if is_first else reversed(told):
            planner.hear(report, 0.0)
        assert not planner.is_saving


def test_what_is_known_to_be_stored_is_offered_again_only_after_a_while() -> None:
    planner = planner_with(keeping=Keeping.CONTEXT)
    planner.fill("r", computed(2), 0.0)
    planner.hear(StepReport(saved=[run(0).key]), 1.0)
    planner.take()
    for name, now, saves in (("s", KNOWN_FOR_S, 0), ("t", KNOWN_FOR_S + 2, 1)):
        transfer = TransferRequest((), Keeping.CONTEXT)
        planner.add(name, transfer, RouterChain(BLOCK_SIZE, "salt"))
        planner.fill(name, computed(2), now)
        assert len(planner.take().saves) == saves


def test_a_loaded_object_is_not_saved_again_but_a_hole_is_filled() -> None:
    planner = planner_with(run(0), run(2), keeping=Keeping.CONTEXT)
    planner.match("r", HASHES, 0, 9)
    planner.place("r", 4, IDS)
    planner.fill("r", computed(4), 0.0)
    assert planner.take().saves == ()
    planner.hear(StepReport(unusable=[run(2).key], failed_loads={"r": 2}), 0.0)
    planner.fill("r", computed(4), 0.0)
    assert run(2).key in [save.key for save in planner.take().saves]


def test_a_load_is_tried_once() -> None:
    planner = planner_with(run(0))
    planner.match("r", HASHES, 0, 9)
    planner.place("r", 2, IDS)
    planner.hear(StepReport(failed_loads={"r": 2}), 0.0)
    assert planner.match("r", HASHES, 0, 9) == 0
    assert planner.forget("r") == 2
    assert planner.forget("r") == 0


def test_a_request_that_ended_leaves_nothing() -> None:
    planner = planner_with(run(0), keeping=Keeping.CONTEXT)
    planner.forget("r")
    assert planner.match("r", HASHES, 0, 9) == 0
    planner.fill("r", computed(4), 0.0)
    assert planner.take().saves == ()


def test_what_is_saved_says_what_it_was_computed_from() -> None:
    planner = planner_with(keeping=Keeping.CONTEXT)
    planner.fill("r", computed(5), now=0.0)
    first, second = (order.origin for order in planner.take().saves)
    assert first is not None
    assert second is not None
    assert np.frombuffer(first.token_ids + second.token_ids, "<u4").tolist() == TOKENS[:16]
    chain = hash_blocks(np.array(TOKENS, "<u4").tobytes(), BLOCK_SIZE, salt("salt"))
    assert (first.first_block, first.parent_hash, first.cache_salt) == (0, None, "salt")
    assert (second.first_block, second.parent_hash) == (WIDTH, int(chain[WIDTH - 1]))
