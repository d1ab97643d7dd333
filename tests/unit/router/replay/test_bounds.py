"""The best reuse that a workload allows."""

from router.replay.bounds import bounds
from router.replay.trace import Chainer, TraceRequest, TraceRow


def requests(*prompts: range) -> list[TraceRequest]:
    rows = [
        TraceRow(float(number), 8 * len(prompt) + 4, 1, list(prompt))
        for number, prompt in enumerate(prompts)
    ]
    return list(Chainer(8, 8).requests(rows))


def test_an_infinite_cache_finds_every_prefix_that_was_there_before() -> None:
    found = bounds(requests(range(4), range(4), range(6)), 1000, 8)
    assert found.infinite == 8 * (4 + 4) / (36 + 36 + 52)
    assert found.pooled == found.infinite


def test_a_small_pooled_cache_finds_less() -> None:
    asked = requests(range(4), range(10, 14), range(20, 24), range(4))
    assert bounds(asked, 8, 8).pooled == 0
    assert bounds(asked, 100, 8).pooled > 0


def test_the_last_token_is_always_computed() -> None:
    rows = [TraceRow(0.0, 32, 1, [1, 2, 3, 4]), TraceRow(1.0, 32, 1, [1, 2, 3, 4])]
    found = bounds(list(Chainer(8, 8).requests(rows)), 100, 8)
    assert found.infinite == 24 / 64


def test_a_workload_of_nothing_has_no_reuse() -> None:
    assert bounds([], 10, 8).infinite == 0
