"""The figures of a replay. Pure.

Latencies are of completed requests, in milliseconds: TTFT and E2E from the arrival, TPOT
(E2E - TTFT) / (output tokens - 1).
"""

from collections.abc import Sequence
from dataclasses import astuple, dataclass

import numpy as np
from numpy.typing import NDArray

from router.replay.outcomes import Outcomes
from router.replay.simulation import Replayed

Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Limits:
    """What a request must meet to count as goodput."""

    ttft_ms: float = 1000.0
    tpot_ms: float = 100.0


@dataclass(frozen=True, slots=True)
class Latencies:
    """Of one set of requests; `reuse` is the share of prompt tokens found in a cache."""

    requests: int
    completed_requests: int
    reuse: float
    mean_ttft_ms: float
    p50_ttft_ms: float
    p90_ttft_ms: float
    p99_ttft_ms: float
    mean_tpot_ms: float
    mean_e2e_ms: float
    p50_e2e_ms: float
    p99_e2e_ms: float
    goodput_rps: float
    error_rate: float


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one policy. `imbalance`: the busiest replica's busy time over the mean of all.

    `busy_s_per_request` is what a completed request costs in replica-seconds of computing,
    `replica_s_per_request` in replica-seconds of being there.
    """

    all: Latencies
    imbalance: float
    computed_prefill_tokens: int
    busy_s_per_request: float
    replica_s_per_request: float
    by_label: dict[str, Latencies]


def figures(replayed: Replayed, limits: Limits) -> Figures:
    outcomes = replayed.outcomes
    busy_s = np.array([work.busy_s for work in replayed.work.values()])
    everything = np.ones(len(outcomes), np.bool_)
    overall = latencies(outcomes, everything, limits, replayed.duration_s)
    completed = max(overall.completed_requests, 1)
    labels = sorted(set(outcomes.labels)) if len(outcomes) else []
    return Figures(
        overall,
        float(busy_s.max() / busy_s.mean()) if busy_s.any() else 1.0,
        sum(work.computed_tokens for work in replayed.work.values()),
        float(busy_s.sum()) / completed,
        replayed.replica_s / completed,
        {
            label: latencies(outcomes, outcomes.labels == label, limits, replayed.duration_s)
            for label in labels
            if len(labels) > 1
        },
    )


def latencies(outcomes: Outcomes, chosen: Mask, limits: Limits, duration_s: float) -> Latencies:
    """Of the `chosen` [requests]; percentiles are 0 where nothing was completed."""
    done = chosen & outcomes.is_completed
    ttft_ms, e2e_ms = 1e3 * outcomes.ttft_s[done], 1e3 * outcomes.e2e_s[done]
    further = np.maximum(outcomes.output_tokens[done] - 1, 1)
    tpot_ms = (e2e_ms - ttft_ms) / further
    is_good = (ttft_ms <= limits.ttft_ms) & (tpot_ms <= limits.tpot_ms)
    prompt_tokens = int(outcomes.prompt_tokens[done].sum())
    requests, completed = int(chosen.sum()), int(done.sum())
    p50, p90, p99 = _percentiles(ttft_ms, 50, 90, 99)
    p50_e2e, p99_e2e = _percentiles(e2e_ms, 50, 99)
    return Latencies(
        requests=requests,
        completed_requests=completed,
        reuse=float(outcomes.cached_tokens[done].sum()) / max(prompt_tokens, 1),
        mean_ttft_ms=_mean(ttft_ms),
        p50_ttft_ms=p50,
        p90_ttft_ms=p90,
        p99_ttft_ms=p99,
        mean_tpot_ms=_mean(tpot_ms[outcomes.output_tokens[done] > 1]),
        mean_e2e_ms=_mean(e2e_ms),
        p50_e2e_ms=p50_e2e,
        p99_e2e_ms=p99_e2e,
        goodput_rps=float(is_good.sum()) / duration_s if duration_s else 0.0,
        error_rate=1 - completed / requests if requests else 0.0,
    )


def mean_of(several: Sequence[Figures]) -> Figures:
    """Of replays of one policy on several seeds: each figure's mean."""
    labels = sorted({label for each in several for label in each.by_label})
    return Figures(
        _mean_latencies([each.all for each in several]),
        _mean([each.imbalance for each in several]),
        round(_mean([each.computed_prefill_tokens for each in several])),
        _mean([each.busy_s_per_request for each in several]),
        _mean([each.replica_s_per_request for each in several]),
        {
            label: _mean_latencies(
                [each.by_label[label] for each in several if label in each.by_label]
            )
            for label in labels
        },
    )


def _mean_latencies(several: Sequence[Latencies]) -> Latencies:
    rows = np.array([astuple(each) for each in several])
    means = rows.mean(axis=0).tolist()
    requests, completed, *rest = means
    return Latencies(round(requests), round(completed), *rest)


def _mean(values: NDArray[np.float64] | Sequence[float]) -> float:
    return float(np.mean(values)) if len(values) else 0.0


def _percentiles(values: NDArray[np.float64], *percents: float) -> list[float]:
    if not len(values):
        return [0.0] * len(percents)
    found: list[float] = np.percentile(values, percents).tolist()
    return found
