from router.serve.breaker import Breaker


def test_opens_after_three_misses_in_a_row() -> None:
    breaker = Breaker(misses_to_open=3)

    opened = [breaker.missed(now=1.0) for _ in range(4)]

    assert opened == [False, False, True, False]
    assert breaker.is_open


def test_an_answer_between_misses_starts_the_count_again() -> None:
    breaker = Breaker(misses_to_open=3)
    breaker.missed(0.0)
    breaker.missed(0.0)

    assert breaker.answered() is False
    breaker.missed(0.0)

    assert not breaker.is_open


def test_an_answer_closes_it() -> None:
    breaker = Breaker(misses_to_open=1)
    breaker.missed(0.0)

    assert breaker.answered() is True
    assert not breaker.is_open


def test_one_probe_an_interval_is_due() -> None:
    breaker = Breaker(misses_to_open=1, probe_interval_s=1.0)
    breaker.missed(10.0)
    assert breaker.probe_wait_s(10.25) == 0.75
    assert breaker.probe_wait_s(11.5) == 0.0

    breaker.probed(11.5)

    assert breaker.probe_wait_s(11.5) == 1.0


def test_other_settings_close_it_and_count_from_there() -> None:
    breaker = Breaker(1, 1.0)
    assert breaker.missed(0.0)
    breaker.adjust(2, 0.5)
    assert not breaker.is_open
    assert [breaker.missed(1.0), breaker.missed(1.0)] == [False, True]
    assert breaker.probe_wait_s(1.0) == 0.5
