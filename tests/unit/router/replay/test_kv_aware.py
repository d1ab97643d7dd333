"""What `kv_aware` makes of whole workloads, on the product's own parts and given time."""

from collections import Counter
from collections.abc import Sequence
from random import Random

import pytest

from router.policies.registry import PolicySpec
from router.replay.figures import Figures, Limits, figures, mean_of
from router.replay.generated import unique
from router.replay.plan import FleetPlan, ReplayPlan
from router.replay.simulation import Replayed, Simulation
from router.replay.trace import Chainer, TraceRequest, TraceRow

BLOCK_SIZE = 64
PREFIX = list(range(100))


def requests(rows: Sequence[TraceRow]) -> list[TraceRequest]:
    return list(Chainer(BLOCK_SIZE, BLOCK_SIZE).requests(rows))


def behind_one_prefix(arrivals_s: Sequence[float], tail_blocks: int = 1) -> list[TraceRequest]:
    """Prompts of 100 common blocks and their own tail, each with an answer of 50 tokens."""
    rows = []
    for number, at_s in enumerate(arrivals_s):
        first = 1000 + tail_blocks * number
        blocks = PREFIX + list(range(first, first + tail_blocks))
        rows.append(TraceRow(at_s, BLOCK_SIZE * len(blocks), 50, blocks))
    return requests(rows)


def replay(asked: Sequence[TraceRequest], policy: PolicySpec, replicas: int = 4) -> Replayed:
    fleet = FleetPlan(replicas=replicas, blocks=4096, block_size=BLOCK_SIZE)
    return Simulation(ReplayPlan(policy, fleet), asked).run()


def cold(replayed: Replayed) -> int:
    """How often the prefix was computed."""
    return int((replayed.outcomes.cached_tokens < BLOCK_SIZE * len(PREFIX)).sum())


def shares(replayed: Replayed) -> Counter[str]:
    return Counter({name: work.requests for name, work in replayed.work.items()})


def poisson(rate: float, count: int, seed: int = 0) -> list[float]:
    rng, at_s, arrivals = Random(seed), 0.0, []
    for _ in range(count):
        at_s += rng.expovariate(rate)
        arrivals.append(at_s)
    return arrivals


KV_AWARE, LEAST_LOADED = PolicySpec("kv_aware"), PolicySpec("least_loaded")


def test_a_burst_of_siblings_computes_a_cold_prefix_a_few_times() -> None:
    """Eight at once on eight replicas: by load alone each replica would compute it."""
    burst = behind_one_prefix([0.01 * number for number in range(8)])
    assert cold(replay(burst, KV_AWARE, replicas=8)) <= 3
    assert cold(replay(burst, LEAST_LOADED, replicas=8)) == 8


def test_a_hot_prefix_spreads_before_it_saturates_a_replica() -> None:
    """At this rate one replica alone would be busy two thirds of the time with prefills."""
    replayed = replay(behind_one_prefix(poisson(20.0, 400)), KV_AWARE)
    assert max(shares(replayed).values()) < 0.6 * 400
    assert cold(replayed) <= 8


def test_a_lukewarm_prefix_stays_together() -> None:
    replayed = replay(behind_one_prefix(poisson(0.5, 60)), KV_AWARE)
    assert cold(replayed) <= 3


def found(policy: PolicySpec) -> Figures:
    several = [requests(unique(Random(seed), 1.25, requests=600)) for seed in (5, 6, 7)]
    return mean_of([figures(replay(asked, policy), Limits()) for asked in several])


def test_where_nothing_is_reused_it_serves_as_well_as_least_loaded() -> None:
    ours, theirs = found(KV_AWARE).all, found(LEAST_LOADED).all
    assert ours.mean_ttft_ms <= 1.02 * theirs.mean_ttft_ms
    assert ours.p99_ttft_ms <= 1.02 * theirs.p99_ttft_ms
    assert ours.mean_e2e_ms <= 1.02 * theirs.mean_e2e_ms


def test_ties_spread() -> None:
    """Prompts far apart in time, none like another: an idle fleet is used evenly."""
    asked = requests(unique(Random(7), 0.005, requests=120))
    assert max(shares(replay(asked, KV_AWARE)).values()) == pytest.approx(30, abs=12)
