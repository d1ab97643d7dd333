"""Figures as a replay would give them, for tests of what is said of them."""

from router.replay.figures import Figures, Latencies


def latencies(ttft_ms: float, reuse: float, goodput: float, e2e_ms: float) -> Latencies:
    return Latencies(
        requests=100,
        completed_requests=100,
        reuse=reuse,
        mean_ttft_ms=ttft_ms,
        p50_ttft_ms=ttft_ms,
        p90_ttft_ms=ttft_ms,
        p99_ttft_ms=2 * ttft_ms,
        mean_tpot_ms=20.0,
        mean_e2e_ms=e2e_ms,
        p50_e2e_ms=e2e_ms,
        p99_e2e_ms=5000.0,
        goodput_rps=goodput,
        error_rate=0.0,
    )


def made(
    ttft_ms: float, *, reuse: float = 0.5, goodput: float = 10.0, e2e_ms: float = 3000.0
) -> Figures:
    overall = latencies(ttft_ms, reuse, goodput, e2e_ms)
    return Figures(overall, 1.1, 123_456, 0.4, 0.8, {"a": overall, "b <i>": overall})
