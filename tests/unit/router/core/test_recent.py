"""Fading sums: halves after each half-life, whatever the order of adding and the age."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.core.recent import FadingTotals


class Totals:
    """Three slots with a half-life of ten seconds."""

    def __init__(self) -> None:
        self.values = np.zeros(3)
        self.fading = FadingTotals(self.values, half_life_s=10.0)

    def at(self, now: float) -> list[float]:
        self.fading.fade(now)
        return self.values.tolist()


def test_half_is_left_after_a_half_life() -> None:
    totals = Totals()
    totals.fading.add(1, 800, now=5.0)
    assert totals.at(15.0) == pytest.approx([0, 400, 0])
    assert totals.at(35.0) == pytest.approx([0, 100, 0])


def test_who_joins_begins_with_the_mean_of_the_others_as_it_is_then() -> None:
    totals = Totals()
    totals.fading.join(0, now=0.0)
    totals.fading.join(1, now=0.0)
    totals.fading.add(0, 800, now=0.0)
    totals.fading.add(1, 400, now=0.0)
    totals.fading.join(2, now=10.0)
    assert totals.at(10.0) == pytest.approx([400, 200, 300])
    for slot in range(3):
        totals.fading.leave(slot)
    totals.fading.join(0, now=10.0)
    assert totals.at(10.0) == [0, 0, 0]


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.floats(0, 5000), st.integers(0, 2), st.integers(0, 100_000))),
    st.floats(0, 100),
)
def test_equals_the_sum_of_each_addition_faded_by_its_own_age(
    additions: list[tuple[float, int, int]], after_s: float
) -> None:
    """Over hundreds of half-lives."""
    totals = Totals()
    additions.sort()
    end = (additions[-1][0] if additions else 0.0) + after_s
    expected = [0.0, 0.0, 0.0]
    for now, slot, amount in additions:
        totals.fading.add(slot, amount, now)
        expected[slot] += amount * 2.0 ** ((now - end) / 10.0)
    assert totals.at(end) == pytest.approx(expected, abs=1e-6)


def test_stays_finite_over_a_year_without_traffic() -> None:
    totals = Totals()
    totals.fading.add(0, 1000, now=0.0)
    totals.fading.add(1, 1000, now=3e7)
    assert totals.at(3e7) == [0, 1000, 0]
    assert totals.at(6e7) == [0, 0, 0]


def test_a_cleared_slot_has_no_past() -> None:
    totals = Totals()
    totals.fading.add(0, 1000, now=0.0)
    totals.fading.leave(0)
    assert totals.at(0.0) == [0, 0, 0]
