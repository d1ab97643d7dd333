"""The comparison's own arithmetic, and that our side of it runs."""

from random import Random

from router.replay.generated import sessions
from serve_app.bench.head_to_head import COMPARED, losses, mean_of, ours, ratios


def test_a_ratio_is_ours_over_theirs() -> None:
    mine, other = dict.fromkeys(COMPARED, 3.0), dict.fromkeys(COMPARED, 2.0)
    assert ratios(mine, other) == dict.fromkeys(COMPARED, 1.5)
    assert mean_of([mine, other]) == dict.fromkeys(COMPARED, 2.5)


def test_a_loss_is_positive_where_a_disturbance_costs_something() -> None:
    calm = {"prefix_cache_reused_ratio": 0.8, "mean_ttft_ms": 60.0}
    hit = {"prefix_cache_reused_ratio": 0.75, "mean_ttft_ms": 66.0}
    assert losses(hit, calm) == {"reuse": 0.05, "mean_ttft_ms": 6.0}


def test_our_side_has_the_figures_that_are_compared() -> None:
    rows = sessions(Random(1), 4.0, sessions=6, turns=2)
    assert set(COMPARED) <= ours(rows, "kv_aware", 400).keys()
