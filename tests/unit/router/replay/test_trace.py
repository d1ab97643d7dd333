"""From trace blocks to engine blocks."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.core.errors import ConfigurationError
from router.replay.trace import Chainer, TraceRow

IDS = st.lists(st.integers(0, 3), max_size=5)


def hashes(*rows: TraceRow, trace_block: int = 32, block: int = 8) -> list[list[int]]:
    chainer = Chainer(trace_block, block)
    return [request.hashes.tolist() for request in chainer.requests(rows)]


def row(prompt_tokens: int, *ids: int) -> TraceRow:
    return TraceRow(0.0, prompt_tokens, 1, ids)


@settings(deadline=None)
@given(first=IDS, second=IDS)
def test_equal_leading_ids_are_equal_leading_blocks_and_nothing_else_is(
    first: list[int], second: list[int]
) -> None:
    a, b = hashes(row(32 * len(first), *first), row(32 * len(second), *second))
    common = next(
        (at for at, (x, y) in enumerate(zip(first, second, strict=False)) if x != y),
        min(len(first), len(second)),
    )
    assert a[: 4 * common] == b[: 4 * common]
    assert set(a[4 * common :]).isdisjoint(b[4 * common :])


def test_one_id_after_different_prefixes_is_not_one_block() -> None:
    a, b = hashes(row(64, 1, 7), row(64, 2, 7))
    assert set(a).isdisjoint(b)


def test_only_full_engine_blocks_count_also_of_a_cut_trace_block() -> None:
    long, short = hashes(row(64, 1, 2), row(32 + 17, 1, 2))
    assert len(long) == 8
    assert short == long[:6]


def test_what_no_id_names_nobody_shares() -> None:
    a, b = hashes(row(64, 1), row(64, 1))
    assert a[:4] == b[:4]
    assert set(a[4:]).isdisjoint(b[4:])
    assert len(a) == 8


def test_hashes_leave_the_upper_half_to_answers() -> None:
    (found,) = hashes(row(3200, *range(100)))
    assert len(set(found)) == 400
    assert max(found) < 2**63


def test_a_faster_replay_brings_requests_sooner() -> None:
    rows = [TraceRow(3.0, 8, 1)]
    assert [request.at_s for request in Chainer(8, 8).requests(rows, speed=2)] == [1.5]


def test_sizes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="trace_block_size"):
        Chainer(100, 64)


def test_hashes_are_what_the_index_takes() -> None:
    (request,) = Chainer(32, 8).requests([row(40, 1, 2)])
    assert request.hashes.dtype == np.uint64
