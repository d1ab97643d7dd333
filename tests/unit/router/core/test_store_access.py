"""What a load costs each replica, as a share of computing the same blocks."""

import numpy as np
import pytest

from router.core.store_access import LoadLine, StoreAccess
from router.core.types import Slot, StoreId

LINE = LoadLine(fixed_ms=6.0, ms_per_block=0.5, compute_ms_per_block=2.0)
SLOTS = np.arange(3)


def test_more_blocks_share_the_fixed_part() -> None:
    access = StoreAccess(3)
    access.set(Slot(0), StoreId("s"), LINE)
    access.set(Slot(1), StoreId("s"), LINE)
    shares = access.shares(SLOTS[:2], np.array([4, 12], np.int32))
    assert shares.tolist() == [1.0, 0.5]
    assert LINE.break_even_blocks == 4.0


def test_nothing_is_measured_at_first_and_nothing_is_loaded_without_a_store() -> None:
    access = StoreAccess(3)
    assert not access.is_used
    access.set(Slot(1), StoreId("s"), None)
    access.set(Slot(2), StoreId("s"), LINE)
    assert (access.is_used, access.store_of(1), access.store_of(0)) == (True, "s", None)
    shares = access.shares(SLOTS, np.full(3, 8, np.int32))
    assert shares.tolist() == pytest.approx([np.inf, np.nan, 0.625], nan_ok=True)
    access.forget(Slot(1))
    access.forget(Slot(2))
    assert not access.is_used
    assert np.isinf(access.shares(SLOTS, np.zeros(3, np.int32))).all()


def test_what_is_dearer_by_the_block_never_breaks_even() -> None:
    assert LoadLine(1.0, 2.0, 2.0).break_even_blocks == np.inf
