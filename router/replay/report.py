"""The replay's report: one HTML page that needs nothing beside it.

Needs the extra `report`, whose packages are imported only when a report is made.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files

from router.core.errors import ConfigurationError
from router.replay.advice import Advice
from router.replay.bounds import Bounds
from router.replay.figures import Figures
from router.replay.outcomes import Outcomes
from router.replay.table import frequent_labels


@dataclass(frozen=True, slots=True)
class Results:
    """All that a report shows. `outcomes` are of the first run of each policy; `settings` are
    (name, value) pairs of what was replayed on what."""

    workload: str
    settings: tuple[tuple[str, str], ...]
    figures: Mapping[str, Figures]
    outcomes: Mapping[str, Outcomes]
    bounds: Bounds
    advice: Advice
    yaml: tuple[str, ...]

    @property
    def labels(self) -> list[str]:
        return frequent_labels(self.figures)


def check_report_extra() -> None:
    """Raises `ConfigurationError` where the packages are missing: before the work, not after."""
    try:
        import jinja2  # noqa: F401
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise ConfigurationError(
            "report", f"needs {error.name}: pip install 'warmpath[report]'"
        ) from error


def html_report(results: Results) -> str:
    """Raises `ConfigurationError` without the extra `report`."""
    check_report_extra()
    from jinja2 import Environment, StrictUndefined

    from router.replay.plots import distribution_plot, over_time_plot, reuse_plot

    source = files("router.replay").joinpath("report.html.j2").read_text("utf-8")
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    plots = (
        ("Reuse", reuse_plot(results.figures, results.bounds)),
        ("Time to first token", distribution_plot(results.outcomes, "ttft", "TTFT in ms")),
        ("End to end", distribution_plot(results.outcomes, "e2e", "E2E latency in ms")),
        ("Time to first token over time", over_time_plot(results.outcomes)),
    )
    return environment.from_string(source).render(results=results, plots=plots)
