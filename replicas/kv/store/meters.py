"""A KV store's figures as Ray's metrics; Ray exports them with `ray_` before the name."""

from collections.abc import Mapping

from ray.util.metrics import Gauge


class StoreMeters:
    """Of one store; Ray adds the node's address."""

    def __init__(self, application: str) -> None:
        self._application = application
        self._state = Gauge(
            "warmpath_kv_store",
            "The KV store of a node, by kind: objects, bytes, hits, misses, what left and why.",
            tag_keys=("application", "kind"),
        )

    def report(self, counts: Mapping[str, float]) -> None:
        for kind, count in counts.items():
            self._state.set(count, tags={"application": self._application, "kind": kind})
