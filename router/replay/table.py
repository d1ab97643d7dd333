"""The figures of several policies as one table of text. Pure."""

from collections.abc import Mapping, Sequence

from router.replay.bounds import Bounds
from router.replay.figures import Figures, Latencies

_LATENCIES = (
    "ttft p50",
    "p90",
    "p99",
    "mean",
    "tpot",
    "e2e mean",
    "e2e p99",
    "good/s",
    "errors",
)
_HEAD = ("policy", "reuse", "of pooled", "of ideal", *_LATENCIES)
_TAIL = ("imbal.", "computed", "busy s/req")


def policy_table(results: Mapping[str, Figures], bounds: Bounds) -> list[str]:
    """One row a policy; latencies in ms, computed prefill in tokens, best reuse possible below."""
    rows = [
        (
            name,
            f"{each.all.reuse:.3f}",
            _share(each.all.reuse, bounds.pooled),
            _share(each.all.reuse, bounds.infinite),
            *_latencies(each.all),
            f"{each.imbalance:.2f}",
            f"{each.computed_prefill_tokens:,}",
            f"{each.busy_s_per_request:.3f}",
        )
        for name, each in results.items()
    ]
    return [
        *_aligned([(*_HEAD, *_TAIL), *rows]),
        f"reuse of one cache as large as all together: {bounds.pooled:.3f},"
        f" of an infinite one: {bounds.infinite:.3f}",
    ]


def label_table(results: Mapping[str, Figures]) -> list[str]:
    """One row a label and policy; none where there is one label only."""
    rows = [
        (label, name, str(found.requests), f"{found.reuse:.3f}", *_latencies(found))
        for label in frequent_labels(results)
        for name, each in results.items()
        if (found := each.by_label.get(label)) is not None
    ]
    return _aligned([("label", "policy", "requests", "reuse", *_LATENCIES), *rows]) if rows else []


def frequent_labels(results: Mapping[str, Figures], most: int = 12) -> list[str]:
    """The labels of most requests, in order of name."""
    first = next(iter(results.values()))
    counts = {label: found.requests for label, found in first.by_label.items()}
    return sorted(sorted(counts, key=lambda label: -counts[label])[:most])


def _latencies(found: Latencies) -> Sequence[str]:
    return (
        _ms(found.p50_ttft_ms),
        _ms(found.p90_ttft_ms),
        _ms(found.p99_ttft_ms),
        _ms(found.mean_ttft_ms),
        f"{found.mean_tpot_ms:.1f}",
        _ms(found.mean_e2e_ms),
        _ms(found.p99_e2e_ms),
        f"{found.goodput_rps:.1f}",
        f"{found.error_rate:.1%}",
    )


def _ms(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.1f}"


def _share(value: float, whole: float) -> str:
    return f"{value / whole:.0%}" if whole else "-"


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """The first column to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if place == 0 else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
