"""The queue of deadlines: order, extension, and a heap that does not grow with churn."""

from hypothesis import given, settings
from hypothesis import strategies as st

from router.core.lapses import LapseQueue


@settings(deadline=None)
@given(st.dictionaries(st.integers(0, 50), st.floats(0, 100)), st.floats(0, 100))
def test_exactly_those_whose_time_has_come_leave_in_order(
    deadlines: dict[int, float], now: float
) -> None:
    queue: LapseQueue[int] = LapseQueue()
    for key, lapses_at in deadlines.items():
        queue.add(key, lapses_at)
    lapsed = queue.lapsed(now)
    assert set(lapsed) == {key for key, at in deadlines.items() if at <= now}
    assert [deadlines[key] for key in lapsed] == sorted(deadlines[key] for key in lapsed)
    assert len(queue) == len(deadlines) - len(lapsed)


def test_an_extended_deadline_counts_and_an_earlier_one_does_not() -> None:
    queue: LapseQueue[int] = LapseQueue()
    queue.add(1, 5.0)
    queue.add(2, 6.0)
    queue.extend(1, 9.0)
    queue.extend(2, 1.0)
    assert queue.lapsed(5.5) == []
    assert queue.pop_first() == 2
    assert queue.lapsed(9.0) == [1]


def test_a_key_that_comes_back_keeps_its_later_deadline() -> None:
    queue: LapseQueue[int] = LapseQueue()
    queue.add(1, 5.0)
    queue.remove(1)
    queue.add(1, 8.0)
    assert queue.lapsed(6.0) == []
    assert queue.lapsed(8.0) == [1]


def test_a_key_that_comes_back_with_an_earlier_deadline_lapses_then() -> None:
    queue: LapseQueue[int] = LapseQueue()
    queue.add(1, 9.0)
    queue.remove(1)
    queue.add(1, 3.0)
    assert queue.lapsed(3.0) == [1]
    assert queue.lapsed(9.0) == []


def test_keys_that_left_do_not_pile_up() -> None:
    queue: LapseQueue[int] = LapseQueue()
    for key in range(20_000):
        queue.add(key, 1e9)
        queue.remove(key)
    assert len(queue._heap) <= 1026
