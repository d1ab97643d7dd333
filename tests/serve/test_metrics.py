"""What Ray's exporter of this node shows, as Prometheus reads it."""

import re
from collections.abc import Iterator

import httpx
import pytest
import ray

from replicas.cache_report import REPLICA_GAUGES
from serve_app.observe.metrics import METRICS, Kind
from tests.serve.cached_app import until
from tests.serve.sim_app import App

pytestmark = [pytest.mark.ray, pytest.mark.slow]

RARE = {
    "warmpath_fallbacks",
    "warmpath_rerouted",
    "warmpath_retries",
    "warmpath_forecast_differences",
    "warmpath_unsettled",
    "warmpath_load_tokens",
}
"""Counters of what does not befall every request: they appear with their first event."""


@pytest.fixture
def metrics_url(app: App) -> Iterator[str]:
    (node,) = [node for node in ray.nodes() if node["Alive"]]
    yield f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics"


def test_every_metric_of_the_table_is_exported(client: httpx.Client, metrics_url: str) -> None:
    body = {"model": "fast", "prompt": [7] * 100, "max_tokens": 2}
    for stream in (False, True, False):
        answer = client.post("/v1/completions", json={**body, "stream": stream})
        assert answer.status_code == 200
    suffixes = {Kind.COUNTER: "_total", Kind.GAUGE: "", Kind.HISTOGRAM: "_bucket"}
    wanted = {f"ray_{each.name}{suffixes[each.kind]}" for each in METRICS if each.name not in RARE}
    wanted |= {f"ray_{gauge.name}" for gauge in REPLICA_GAUGES}
    until(lambda: wanted <= exported(metrics_url), 60)
    text = httpx.get(metrics_url, timeout=30).text
    assert re.search(r'ray_warmpath_kv_usage\{.*replica="', text)


def exported(url: str) -> set[str]:
    lines = httpx.get(url, timeout=30).text.splitlines()
    return {line.partition("{")[0] for line in lines if line.startswith("ray_warmpath")}
