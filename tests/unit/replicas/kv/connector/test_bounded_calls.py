"""Whoever is called, the caller goes on in time."""

import threading

import pytest

from replicas.kv.connector.bounded_calls import BoundedCalls


def test_a_call_that_ends_gives_its_result_or_its_error() -> None:
    calls = BoundedCalls()
    assert calls.run(lambda: 5, 1.0) == 5
    with pytest.raises(KeyError):
        calls.run(lambda: {}["missing"], 1.0)


def test_a_call_that_hangs_is_left_behind() -> None:
    calls, release = BoundedCalls(max_calls=1), threading.Event()
    with pytest.raises(TimeoutError):
        calls.run(release.wait, 0.01)
    with pytest.raises(TimeoutError, match="too many"):
        calls.run(lambda: 5, 0.01)
    release.set()
    assert calls.run(lambda: 5, 1.0) == 5
