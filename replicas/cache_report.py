"""What a replica tells Ray's metrics of its engine, its cache and its way to the block index.

Ray exports the names with `ray_` before them. Serve adds the application, the deployment and the
replica as tags. The ingress's metrics are in `serve_app.observe.metrics`.
"""

import asyncio
from dataclasses import dataclass
from math import isfinite
from typing import Protocol

import msgspec

from replicas.engines.protocol import Engine
from replicas.kv.tracker import CacheTracker
from router.core.store_access import LoadLine

INTERVAL_S = 5.0


@dataclass(frozen=True, slots=True)
class ReplicaGauge:
    """A value of one replica from here on."""

    name: str
    description: str
    tags: tuple[str, ...] = ("model",)


KV_USAGE = ReplicaGauge(
    "warmpath_kv_usage", "Share of the engine's block pool that unfinished requests hold, 0 to 1."
)
ENGINE_REQUESTS = ReplicaGauge(
    "warmpath_engine_requests", "Requests inside the engine, waiting or running."
)
INDEX_LAG = ReplicaGauge(
    "warmpath_index_lag_s",
    "Age of the oldest change of the cache that the block index has not confirmed.",
)
CACHE_EVENTS = ReplicaGauge(
    "warmpath_cache_events",
    "Counts since the replica's start, by kind: the engine's KV events applied and dropped, gaps,"
    " replays and repairs; what the index was told, snapshots and registrations.",
    ("model", "kind"),
)

KV_TRANSFERS = ReplicaGauge(
    "warmpath_kv_transfers",
    "Counts since the engine's start, by kind: loads from KV stores and saves there with their"
    " blocks, bytes and microseconds; what was not loaded or not saved, by cause.",
    ("model", "kind"),
)

KV_BREAK_EVEN = ReplicaGauge(
    "warmpath_kv_break_even",
    "What the replica has measured of loads from KV stores, by kind: fixed_ms, ms_per_block,"
    " compute_ms_per_block, and from how many blocks on loading is cheaper.",
    ("model", "kind"),
)

REPLICA_GAUGES = (KV_USAGE, ENGINE_REQUESTS, INDEX_LAG, CACHE_EVENTS)
STORE_GAUGES = (KV_TRANSFERS, KV_BREAK_EVEN)
"""Of replicas with a KV store only."""


class Gauges(Protocol):
    """Where values go."""

    def observe(self, gauge: ReplicaGauge, value: float, tags: dict[str, str]) -> None: ...


class RayGauges:
    """One for each process; a name exists once in it. For processes of Serve's replicas."""

    def __init__(self) -> None:
        from ray.serve.metrics import Gauge

        self._gauges = {
            gauge.name: Gauge(gauge.name, description=gauge.description, tag_keys=gauge.tags)
            for gauge in (*REPLICA_GAUGES, *STORE_GAUGES)
        }

    def observe(self, gauge: ReplicaGauge, value: float, tags: dict[str, str]) -> None:
        self._gauges[gauge.name].set(value, tags=tags)


async def report_forever(model: str, engine: Engine, tracker: CacheTracker, gauges: Gauges) -> None:
    """Ends by cancellation."""
    while True:
        report(model, engine, tracker, gauges)
        await asyncio.sleep(INTERVAL_S)


def report(model: str, engine: Engine, tracker: CacheTracker, gauges: Gauges) -> None:
    """One round. O(kinds)."""
    tags = {"model": model}
    gauges.observe(KV_USAGE, engine.kv_usage(), tags)
    gauges.observe(ENGINE_REQUESTS, engine.num_unfinished(), tags)
    gauges.observe(INDEX_LAG, tracker.index_lag_s, tags)
    for kind, count in tracker.counters().items():
        gauges.observe(CACHE_EVENTS, count, {**tags, "kind": kind})
    for kind, count in engine.transfer_counts().items():
        gauges.observe(KV_TRANSFERS, count, {**tags, "kind": kind})
    for kind, value in _measured(tracker.traits().load_line).items():
        gauges.observe(KV_BREAK_EVEN, value, {**tags, "kind": kind})


def _measured(line: LoadLine | None) -> dict[str, float]:
    """No break-even where computing is always cheaper."""
    if line is None:
        return {}
    values: dict[str, float] = msgspec.structs.asdict(line)
    values["blocks"] = line.break_even_blocks
    return {kind: value for kind, value in values.items() if isfinite(value)}
