"""Growth of processes that are killed and replaced while they are watched."""

import pytest

from serve_app.bench.soak_memory import WARM_UP_S, MemoryLog


def log_of(lives: list[tuple[int, float, float]], minute_mib: float) -> MemoryLog:
    """Lives as pid, begin and end in seconds; each begins small, is 100 MiB when it is warm, and
    grows from there."""
    log = MemoryLog()
    for pid, begin, end in lives:
        for at in range(int(begin), int(end), 5):
            warm_s = at - begin - WARM_UP_S
            mib = 100 + minute_mib * warm_s / 60 if warm_s >= 0 else 20.0
            log.note(at, {"index": [(pid, mib)]})
    return log


def test_what_a_process_takes_at_its_start_is_no_growth() -> None:
    growth = log_of([(1, 0, 300), (2, 300, 600)], minute_mib=0).growth()["index"]
    assert (growth.first, growth.last, growth.slope) == (100, 100, 0)
    assert growth.is_flat


def test_growth_within_lives_is_seen_though_they_end() -> None:
    growth = log_of([(1, 0, 300), (2, 300, 600)], minute_mib=6).growth()["index"]
    assert growth.slope == pytest.approx(6)


def test_a_process_that_grows_all_the_time_is_not_flat() -> None:
    assert not log_of([(1, 0, 1200)], minute_mib=10).growth()["index"].is_flat


def test_lives_too_short_say_nothing() -> None:
    assert log_of([(1, 0, 20)], minute_mib=10).growth() == {}
