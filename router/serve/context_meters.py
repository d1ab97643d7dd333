"""The context manager's figures as Ray's metrics; Ray exports them with `ray_` before the name.

Tenants appear in no label: their number is not bounded.
"""

from ray.util.metrics import Counter, Gauge, Histogram

from router.serve.context_service import ContextService

_LATENCY_S = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5]


class ContextMeters:
    """Of one application; `report` is called now and then."""

    def __init__(self, application: str) -> None:
        self._state = Gauge(
            "warmpath_contexts",
            "Contexts of the application and what belongs to them, by kind.",
            tag_keys=("application", "kind"),
        )
        self._events = Counter(
            "warmpath_context_events",
            "Contexts that expired, turns that lapsed, conflicted or committed, by kind.",
            tag_keys=("application", "kind"),
        )
        self._latency = Histogram(
            "warmpath_context_commit_s",
            "From the first change of a batch to the moment when all of it is durable.",
            boundaries=_LATENCY_S,
            tag_keys=("application",),
        )
        self._application = application
        self._counted: dict[str, int] = {}

    def report(self, service: ContextService) -> None:
        for kind, value in service.gauges().items():
            self._state.set(value, tags=self._tags(kind))
        for kind, count in service.counts().items():
            # A new life of the service counts from nothing again.
            before = self._counted.get(kind, 0)
            if grown := count - before if count >= before else count:
                self._events.inc(grown, tags=self._tags(kind))
            self._counted[kind] = count
        for latency_s in service.take_latencies():
            self._latency.observe(latency_s, tags={"application": self._application})

    def _tags(self, kind: str) -> dict[str, str]:
        return {"application": self._application, "kind": kind}
