"""The block table is a dictionary from hashes to lanes, whatever the hashes are."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.core.block_table import ABSENT, BlockTable, Hashes

TOP = (1 << 64) - 1


def keys(*values: int) -> Hashes:
    return np.array(values, np.uint64)


crowded = st.sampled_from([0, 1, 2, 3, 4, 8, 12, TOP, TOP - 3, *range(0, 400, 16)])


@settings(deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.lists(crowded, max_size=12)), max_size=12))
def test_table_equals_a_dictionary(steps: list[tuple[bool, list[int]]]) -> None:
    """Few distinct hashes, most of one bucket, so that doubles and overflow are common."""
    table = BlockTable(16)
    model: dict[int, int] = {}
    for inserts, values in steps:
        if inserts:
            lanes, fresh = table.find_or_insert(keys(*values))
            table.discount(fresh.size - len(set(lanes[fresh].tolist())))
            for value, lane in zip(values, lanes.tolist(), strict=True):
                assert model.setdefault(value, lane) == lane
        else:
            gone = {value: model.pop(value) for value in set(values) if value in model}
            table.release(np.array(list(gone.values()), np.int64))
        table.check_integrity()
        assert len(set(model.values())) == len(model) == table.occupied
        asked = keys(*model, 999, TOP - 9)
        assert table.find(asked).tolist() == [*model.values(), ABSENT, ABSENT]
        assert [table.find_one(int(key)) for key in asked] == [*model.values(), None, None]


def test_insertion_tells_what_was_not_there() -> None:
    table = BlockTable(100)
    assert table.find_or_insert(keys(5, 6))[1].tolist() == [0, 1]
    lanes, fresh = table.find_or_insert(keys(7, 6, 7))
    assert fresh.tolist() == [0, 2]
    assert lanes[0] == lanes[2]
    assert table.find_or_insert(keys(5, 6, 7))[1].size == 0


@given(st.lists(crowded, unique=True))
def test_one_by_one_is_as_good_as_together(values: list[int]) -> None:
    table = BlockTable(16)
    lanes = [table.insert_one(value) for value in values]
    assert table.find(keys(*values)).tolist() == lanes
    table.check_integrity()


def test_a_full_overflow_area_refuses_and_harms_nothing() -> None:
    """All hashes want bucket 0, so only the overflow area can take them."""
    table = BlockTable(16)
    many = np.arange(0, 200 * 1024, 1024, dtype=np.uint64)
    lanes, _ = table.find_or_insert(many)
    kept = lanes[lanes >= 0]
    assert table.insert_one(1024 * 1024) is None
    assert len(set(kept.tolist())) == kept.size == table.occupied == 201 - table.refused
    table.check_integrity()
    table.release(kept)
    assert table.occupied == 0
    assert table.find_or_insert(many[:10])[0].min() >= 0


@pytest.mark.parametrize("max_blocks", [1, 7, 64, 1000])
def test_table_takes_all_that_it_is_made_for(max_blocks: int) -> None:
    table = BlockTable(max_blocks)
    some = np.random.default_rng(max_blocks).integers(0, TOP, max_blocks, np.uint64)
    assert table.find_or_insert(some)[0].min() >= 0
    assert table.occupied == max_blocks
    table.check_integrity()
