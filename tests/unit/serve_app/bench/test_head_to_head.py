"""The comparison's own arithmetic, and that our side of it runs."""

from random import Random

from router.replay.generated import sessions
from serve_app.bench.head_to_head import COMPARED, disturbed, losses, mean_of, ours, ratios


def test_a_ratio_is_ours_over_theirs() -> None:
    mine, other = dict.fromkeys(COMPARED, 3.0), dict.fromkeys(COMPARED, 2.0)
    assert ratios(mine, other) == dict.fromkeys(COMPARED, 1.5)
    assert mean_of([mine, other]) == dict.fromkeys(COMPARED, 2.5)


def test_a_loss_is_positive_where_a_disturbance_costs_something() -> None:
    reuse, *times = COMPARED
    calm = {reuse: 0.8} | dict.fromkeys(times, 60.0)
    hit = {reuse: 0.75} | dict.fromkeys(times, 66.0)
    assert losses(hit, calm) == {reuse: 0.05} | dict.fromkeys(times, 6.0)


def test_our_side_has_the_figures_that_are_compared() -> None:
    rows = sessions(Random(1), 4.0, sessions=6, turns=2)
    assert set(COMPARED) <= ours(rows, "kv_aware", 400).keys()


def test_a_rival_meets_the_faults_too() -> None:
    several = [sessions(Random(1), 4.0, sessions=30, turns=8)]
    calm = ours(several[0], "dynamo_cost", 2048)
    for disturbance in ("restart", "ingresses"):
        hit = disturbed(several, "dynamo_cost", 2048, disturbance)
        assert hit != mean_of([calm])
