"""The report is one page that needs nothing beside it."""

import sys
from html.parser import HTMLParser
from random import Random

import pytest

from router.core.errors import ConfigurationError
from router.policies.registry import PolicySpec
from router.replay.advice import Advice
from router.replay.bounds import Bounds
from router.replay.figures import Limits, figures
from router.replay.generated import sessions
from router.replay.plan import FleetPlan, ReplayPlan
from router.replay.report import Results, check_report_extra, html_report
from router.replay.simulation import Simulation
from router.replay.trace import Chainer


def results() -> Results:
    requests = list(
        Chainer(64, 64).requests(sessions(Random(1), 4.0, sessions=5, turns=2, groups=1))
    )
    names = ("kv_aware", 'round_robin{"<script>": 1}')
    plan = ReplayPlan(PolicySpec("round_robin"), FleetPlan(2, 400))
    replayed = {name: Simulation(plan, requests).run() for name in names}
    return Results(
        workload="a <b>trace</b>",
        settings=(("replicas", "2"),),
        figures={name: figures(each, Limits()) for name, each in replayed.items()},
        outcomes={name: each.outcomes for name, each in replayed.items()},
        bounds=Bounds(0.0, 0.4),
        advice=Advice("kv_aware", True, ("Worth it.",)),
        yaml=("deployments:",),
    )


class Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [value or "" for name, value in attrs if name.endswith(("href", "src"))]


def test_the_page_stands_alone_and_shows_what_it_was_given() -> None:
    text = html_report(results())
    page = Page()
    page.feed(text)
    assert page.tags.count("svg") == 4
    assert "script" not in page.tags
    assert "b" in page.tags and "a &lt;b&gt;trace" in text
    assert all(link.startswith("#") for link in page.links)
    assert "url(http" not in text
    assert "kv_aware" in text and "first turn" in text


def test_a_missing_extra_is_named_before_any_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ConfigurationError, match=r"warmpath\[report\]"):
        check_report_extra()
