"""The plots of a report as SVG, by matplotlib, which the extra `report` installs."""

import io
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from router.replay.bounds import Bounds
from router.replay.figures import Figures
from router.replay.outcomes import Outcomes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis

_COLOURS = ("#2563eb", "#dc2626", "#059669", "#d97706", "#7c3aed", "#0891b2", "#be185d", "#65a30d")
_GREY = "#64748b"


def reuse_plot(results: Mapping[str, Figures], bounds: Bounds) -> str:
    """Bars by policy, with the two bounds as lines."""

    def draw(axes: "Axes") -> None:
        names = list(results)
        bars = axes.barh(names, [results[name].all.reuse for name in names], color=_colours(names))
        axes.bar_label(bars, fmt=" %.3f", label_type="center", color="white", fontsize=9)
        axes.axvline(bounds.pooled, color=_GREY, linestyle="--", label="one pooled cache")
        axes.axvline(bounds.infinite, color=_GREY, linestyle=":", label="infinite cache")
        axes.set_xlim(0, max(bounds.infinite, bounds.pooled, 0.05) * 1.25)
        axes.invert_yaxis()
        axes.set_xlabel("share of prompt tokens that were not computed")
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, 1.14), ncols=2, fontsize=8)

    return _svg(draw, 1.3 + 0.38 * len(results))


def distribution_plot(outcomes: Mapping[str, Outcomes], seconds: str, label: str) -> str:
    """The share of completed requests that were at least so quick, by policy.

    `seconds`: `ttft` or `e2e`.
    """

    def draw(axes: "Axes") -> None:
        for name, colour in zip(outcomes, _colours(outcomes), strict=True):
            values = np.sort(1e3 * _completed(outcomes[name], seconds))
            if len(values):
                shares = np.arange(1, len(values) + 1) / len(values)
                chosen = np.unique(np.linspace(0, len(values) - 1, 400).astype(int))
                axes.plot(values[chosen], shares[chosen], label=name, color=colour)
        axes.set_xscale("log")
        _plain_numbers(axes.xaxis)
        axes.set_ylim(0, 1.02)
        axes.set_xlabel(label)
        axes.set_ylabel("share of requests")
        axes.legend(fontsize=8)

    return _svg(draw, 3.6)


def over_time_plot(outcomes: Mapping[str, Outcomes], buckets: int = 40) -> str:
    """Mean TTFT by time of arrival, by policy."""

    def draw(axes: "Axes") -> None:
        for name, colour in zip(outcomes, _colours(outcomes), strict=True):
            times, means = _by_time(outcomes[name], buckets)
            axes.plot(times, means, label=name, color=colour)
        axes.set_yscale("log")
        _plain_numbers(axes.yaxis)
        axes.set_xlabel("time of arrival in s")
        axes.set_ylabel("mean TTFT in ms")
        axes.legend(fontsize=8)

    return _svg(draw, 3.6)


def _by_time(outcomes: Outcomes, buckets: int) -> tuple[Sequence[float], Sequence[float]]:
    done = outcomes.is_completed
    arrived_s, ttft_ms = outcomes.arrived_s[done], 1e3 * outcomes.ttft_s[done]
    edges = np.linspace(0, max(float(outcomes.arrived_s.max()), 1e-3), buckets + 1)
    place = np.clip(np.digitize(arrived_s, edges) - 1, 0, buckets - 1)
    counts = np.bincount(place, minlength=buckets)
    sums = np.bincount(place, weights=ttft_ms, minlength=buckets)
    filled = counts > 0
    middles = (edges[:-1] + edges[1:]) / 2
    return middles[filled].tolist(), (sums[filled] / counts[filled]).tolist()


def _completed(outcomes: Outcomes, seconds: str) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
    values = outcomes.ttft_s if seconds == "ttft" else outcomes.e2e_s
    return values[outcomes.is_completed]


def _colours(names: Mapping[str, object] | Sequence[str]) -> list[str]:
    return [_COLOURS[place % len(_COLOURS)] for place in range(len(names))]


def _plain_numbers(axis: "Axis") -> None:
    """On a logarithmic scale: 20, 50, 100 in the place of powers of ten."""
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    axis.set_minor_formatter(NullFormatter())


def _svg(draw: "Callable[[Axes], None]", height_in: float) -> str:
    """Without pyplot, so that no display and no state of the process is touched."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context({"svg.fonttype": "path", "svg.hashsalt": "warmpath", "font.size": 9}):
        figure = Figure(figsize=(7.2, height_in), layout="constrained")
        axes = figure.subplots()
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25)
        draw(axes)
        written = io.StringIO()
        figure.savefig(written, format="svg", metadata={"Date": None}, transparent=True)
    text = written.getvalue()
    return text[text.index("<svg") :]
