"""The figures of a policy as one flat object, under the names that other replays use. Pure."""

from router.replay.figures import Figures

Summary = dict[str, float | int]


def summary(figures: Figures) -> Summary:
    """The first seven keys are those that NVIDIA Dynamo's replay gives its summary."""
    overall = figures.all
    flat: Summary = {
        "prefix_cache_reused_ratio": overall.reuse,
        "mean_ttft_ms": overall.mean_ttft_ms,
        "p99_ttft_ms": overall.p99_ttft_ms,
        "mean_tpot_ms": overall.mean_tpot_ms,
        "mean_e2e_latency_ms": overall.mean_e2e_ms,
        "p99_e2e_latency_ms": overall.p99_e2e_ms,
        "completed_requests": overall.completed_requests,
        "requests": overall.requests,
        "p50_ttft_ms": overall.p50_ttft_ms,
        "p90_ttft_ms": overall.p90_ttft_ms,
        "goodput_rps": overall.goodput_rps,
        "error_rate": overall.error_rate,
        "imbalance": figures.imbalance,
        "computed_prefill_tokens": figures.computed_prefill_tokens,
        "busy_s_per_request": figures.busy_s_per_request,
        "replica_s_per_request": figures.replica_s_per_request,
    }
    return {
        key: value if isinstance(value, int) else round(value, 4) for key, value in flat.items()
    }
