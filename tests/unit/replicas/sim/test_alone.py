"""Small traces served as NVIDIA Dynamo's mocker (1.6.1) served them, to its last printed digit.

Each request: when it came (ms), prompt and output tokens, blocks of the prompt; then what the
mocker said of it: tokens reused, time to the first token and to the last (ms).
"""

import math

import pytest

from replicas.sim.alone import serve_alone
from replicas.sim.replica import SimReplica
from replicas.sim.scheduler import SchedulerLimits
from replicas.sim.sequence import SimSequence
from router.core.types import BlockHash

PREEMPTED = [
    ((2, 7, 17, [1, 2]), (0, 16.608, 392.804)),
    ((202, 20, 28, [3, 4, 5, 6, 7]), (0, 58.546, 964.372)),
    ((262, 25, 23, [3, 4, 5, 6, 8, 9, 10]), (16, 176.33, 1418.321)),
    ((285, 9, 21, [11, 12, 13]), (0, 928.853, 1864.088)),
    ((345, 28, 16, [3, 4, 14, 15, 16, 17, 18]), (16, 1370.728, 2205.872)),
]
CHUNKED = [
    ((2, 31, 17, [1, 2]), (0, 16.973, 130.759)),
    ((202, 80, 28, [3, 4, 5, 6, 7]), (0, 34.219, 497.329)),
    ((262, 97, 33, [3, 4, 5, 6, 8, 9, 10]), (64, 34.139, 536.814)),
    ((285, 33, 21, [11, 12, 13]), (0, 39.982, 401.199)),
    ((345, 112, 16, [3, 4, 14, 15, 16, 17, 18]), (32, 66.538, 326.556)),
]
FEW_PLACES = [
    ((2, 31, 17, [1, 2]), (0, 16.973, 152.154)),
    ((202, 80, 28, [3, 4, 5, 6, 7]), (0, 17.719, 494.049)),
    ((262, 97, 33, [3, 4, 5, 6, 8, 9, 10]), (64, 31.103, 608.985)),
    ((285, 33, 21, [11, 12, 13]), (0, 441.603, 774.487)),
    ((345, 112, 16, [3, 4, 14, 15, 16, 17, 18]), (32, 552.387, 783.731)),
]

Request = tuple[int, int, int, list[int]]
Figures = tuple[int, float, float]


@pytest.mark.parametrize(
    ("total_blocks", "limits", "trace"),
    [
        (12, SchedulerLimits(4, 256, 8), PREEMPTED),
        (96, SchedulerLimits(16, 64, 8), CHUNKED),
        (48, SchedulerLimits(16, 128, 2), FEW_PLACES),
    ],
    ids=["preempted", "chunked", "few places"],
)
def test_serves_as_the_mocker_does(
    total_blocks: int, limits: SchedulerLimits, trace: list[tuple[Request, Figures]]
) -> None:
    size = limits.block_size
    arrivals = [
        (at_ms / 1000, SimSequence(prompt, output, [BlockHash(b) for b in ids[: prompt // size]]))
        for (at_ms, prompt, output, ids), _ in trace
    ]
    for one, (_, figures) in zip(
        serve_alone(SimReplica.create(total_blocks, limits), arrivals), trace, strict=True
    ):
        times_ms = [1000 * (at_s - one.arrived_s) for at_s in (one.first_token_s, one.end_s)]
        assert [one.sequence.most_cached_tokens, *times_ms] == pytest.approx(figures, abs=1e-3)


def test_what_can_never_fit_has_no_times_and_holds_up_nobody() -> None:
    replica = SimReplica.create(2, SchedulerLimits(4, 64, 8))
    huge, small = SimSequence(9, 1, []), SimSequence(2, 1, [])
    first, second = serve_alone(replica, [(0.0, huge), (1.0, small)])
    assert math.isnan(first.end_s)
    assert second.end_s > 1.0
