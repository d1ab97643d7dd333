"""The metric table as Ray's metrics."""

from collections.abc import Mapping

from ray.util.metrics import Counter, Gauge, Histogram

from serve_app.observe.metrics import METRICS, Kind, Metric


class RayMeters:
    """One for each process; a name exists once in it."""

    def __init__(self) -> None:
        self._counters = {m.name: _counter(m) for m in METRICS if m.kind is Kind.COUNTER}
        self._gauges = {m.name: _gauge(m) for m in METRICS if m.kind is Kind.GAUGE}
        self._histograms = {m.name: _histogram(m) for m in METRICS if m.kind is Kind.HISTOGRAM}

    def add(self, metric: Metric, tags: Mapping[str, str], amount: float = 1) -> None:
        if amount > 0:
            self._counters[metric.name].inc(amount, tags=dict(tags))

    def observe(self, metric: Metric, tags: Mapping[str, str], value: float) -> None:
        if metric.kind is Kind.GAUGE:
            self._gauges[metric.name].set(value, tags=dict(tags))
        else:
            self._histograms[metric.name].observe(value, tags=dict(tags))


def _counter(metric: Metric) -> Counter:
    return Counter(metric.name, description=metric.description, tag_keys=metric.tags)


def _gauge(metric: Metric) -> Gauge:
    return Gauge(metric.name, description=metric.description, tag_keys=metric.tags)


def _histogram(metric: Metric) -> Histogram:
    return Histogram(
        metric.name,
        description=metric.description,
        boundaries=list(metric.buckets),
        tag_keys=metric.tags,
    )
