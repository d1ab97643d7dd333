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
            lanes = table.find_or_insert(keys(*values)).lanes.tolist()
            for value, lane in zip(values, lanes, strict=True):
                assert model.setdefault(value, lane) == lane
        else:
            gone = {value: model.pop(value) for value in set(values) if value in model}
            table.release(np.array(list(gone.values()), np.int64))
        table.check_integrity()
        assert len(set(model.values())) == len(model) == table.occupied
        asked = keys(*model, 999, TOP - 9)
        assert table.find(asked).tolist() == [*model.values(), ABSENT, ABSENT]
        assert [table.find_one(int(key)) for key in asked] == [*model.values(), None, None]


def test_insertion_tells_what_was_fresh_and_what_was_given_twice() -> None:
    table = BlockTable(100)
    first = table.find_or_insert(keys(5, 6))
    assert (first.fresh.tolist(), first.has_doubles) == ([0, 1], False)
    second = table.find_or_insert(keys(7, 6, 7))
    assert (second.fresh.tolist(), second.has_doubles) == ([0, 2], True)
    assert second.lanes[0] == second.lanes[2]
    assert table.find_or_insert(keys(5, 6, 7)).fresh.size == 0


def test_a_full_overflow_area_refuses_and_harms_nothing() -> None:
    """All hashes want bucket 0, so only the overflow area can take them."""
    table = BlockTable(16)
    many = np.arange(0, 200 * 1024, 1024, dtype=np.uint64)
    found = table.find_or_insert(many)
    assert found.has_refusals
    kept = found.lanes[found.lanes >= 0]
    assert len(set(kept.tolist())) == kept.size == table.occupied == 200 - table.refused
    table.check_integrity()
    table.release(kept)
    assert table.occupied == 0
    assert not table.find_or_insert(many[:10]).has_refusals


@pytest.mark.parametrize("max_blocks", [1, 7, 64, 1000])
def test_table_takes_all_that_it_is_made_for(max_blocks: int) -> None:
    table = BlockTable(max_blocks)
    some = np.random.default_rng(max_blocks).integers(0, TOP, max_blocks, np.uint64)
    assert not table.find_or_insert(some).has_refusals
    assert table.occupied == max_blocks
    table.check_integrity()
