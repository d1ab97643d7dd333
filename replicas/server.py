"""What runs inside one replica: an engine, and the few calls that the ingress and Serve make.

A plain class; `replicas.deployment` makes it a Serve deployment.
"""

import asyncio
import dataclasses
import logging
import os
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from replicas.cache_report import report_forever
from replicas.engines.protocol import Engine, EngineInfo, EngineRequest
from replicas.kv.connector.settings import ConnectorSettings
from replicas.kv.store.lease import StoreLease
from replicas.kv.tracker import CacheTracker
from replicas.parity import prove_parity
from replicas.placement import StorePlace, is_in_ray, placement
from replicas.settlement import Settlement
from replicas.warming import warm_up
from router.configuration import ModelConfig, SimConfig
from router.core.store_access import LoadLine
from router.core.types import Incarnation, ReplicaId
from router.kv_store_config import KvStoreConfig

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ReplicaMetadata(EngineInfo):
    """An engine's own words, and which replica it is in. `hash_seed` enters the engine's hashes."""

    replica_id: ReplicaId
    incarnation: Incarnation
    hash_seed: str | None


class LLMServer:
    """One replica of one model. `model` is a `ModelConfig`, `kv_store` a `KvStoreConfig`, as plain
    data.

    The engine starts once, at the first call that needs it; Serve makes that call before it lets
    any request in. A start that failed fails every later call the same way, so that Serve
    replaces the replica.
    """

    def __init__(self, model: dict[str, Any], kv_store: dict[str, Any] | None = None) -> None:
        self._model = ModelConfig.model_validate(model)
        self._kv_store = KvStoreConfig.model_validate(kv_store or {})
        self._engine: Engine | None = None
        self._tracker: CacheTracker | None = None
        self._store: StoreLease | None = None
        self._starting: asyncio.Task[ReplicaMetadata] | None = None
        self._reporting: asyncio.Task[None] | None = None

    async def record_replica_metadata(self) -> dict[str, Any]:
        """Serve's hook after construction: what routers have to know, as plain data."""
        return dataclasses.asdict(await self._started())

    async def generate(self, request: EngineRequest) -> AsyncGenerator[bytes | Settlement, None]:
        """See `Engine.generate`; called through a streaming handle.

        In the report's place comes a settlement where the request has a routing, else nothing.
        """
        engine, tracker = await self._running()
        async with aclosing(engine.generate(request)) as answer:
            async for part in answer:
                if isinstance(part, bytes):
                    yield part
                elif request.routing is not None:
                    yield await tracker.settlement(request, request.routing, part)

    async def check_health(self) -> None:
        """Serve's hook: raises when this replica must be replaced."""
        engine, tracker = await self._running()
        await engine.check_health()
        tracker.check()

    async def reset_prefix_cache(self) -> bool:
        """Drops every reusable block; false where running requests hold some."""
        _, tracker = await self._running()
        return await tracker.reset_prefix_cache()

    async def num_unfinished(self) -> int:
        """Requests inside the engine; 0 means idle."""
        engine, _ = await self._running()
        return engine.num_unfinished()

    async def cache_counters(self) -> dict[str, int]:
        """What became of the engine's KV events, by name."""
        _, tracker = await self._running()
        return tracker.counters()

    async def load_line(self) -> LoadLine | None:
        """What this replica has measured of loads from its KV store, if enough."""
        _, tracker = await self._running()
        return tracker.traits().load_line

    async def shutdown(self) -> None:
        """Ends the engine and its processes. Idempotent."""
        for task in filter(None, (self._starting, self._reporting)):
            task.cancel()
        if self._tracker is not None:
            await self._tracker.close()
        if self._engine is not None:
            await self._engine.stop()
        if self._store is not None:
            await self._store.end()

    async def _running(self) -> tuple[Engine, CacheTracker]:
        await self._started()
        assert self._engine is not None
        assert self._tracker is not None
        return self._engine, self._tracker

    async def _started(self) -> ReplicaMetadata:
        """Shielded: a caller that gives up does not stop the start that others wait for."""
        if self._starting is None:
            self._starting = asyncio.create_task(self._start())
        return await asyncio.shield(self._starting)

    async def _start(self) -> ReplicaMetadata:
        place = placement(self._model, self._kv_store)
        connector = self._hold_store(place.store)
        self._engine = await asyncio.to_thread(open_engine, self._model, connector)
        info = await self._engine.start()
        self._tracker = tracker = CacheTracker(self._engine, info, place.replica_id)
        tracker.follow()
        await prove_parity(self._engine.generate, info, tracker)
        if place.store is not None:
            await warm_up(self._engine, info, place.store.prefixes)
        if place.index is not None:
            tracker.publish(place.index, None if place.store is None else place.store.store_id)
        if place.gauges is not None:
            reporting = report_forever(self._model.name, self._engine, tracker, place.gauges)
            self._reporting = asyncio.create_task(reporting, name="cache-report")
            self._reporting.add_done_callback(_log_failure)
        logger.info("engine of model %s is up: %s", self._model.name, info)
        return ReplicaMetadata(
            replica_id=place.replica_id,
            incarnation=tracker.incarnation,
            hash_seed=os.environ.get("PYTHONHASHSEED"),
            **dataclasses.asdict(info),
        )

    def _hold_store(self, store: StorePlace | None) -> ConnectorSettings | None:
        """From before the engine is there: what the last replica has left must not go meanwhile."""
        if store is None:
            return None
        self._store = store.lease
        self._store.begin()
        return store.connector


def _log_failure(task: "asyncio.Task[None]") -> None:
    if not task.cancelled() and task.exception() is not None:
        logger.error("the replica's own metrics have ended", exc_info=task.exception())


def open_engine(model: ModelConfig, connector: ConnectorSettings | None = None) -> Engine:
    """The engine that the configuration names, not yet started. May import for seconds."""
    if model.engine == "sim":
        from replicas.engines.sim import SimEngine

        return SimEngine(
            model.sim or SimConfig(), model.name, stuck_after_s=model.health_check_timeout_s
        )
    from replicas.engines.vllm import opening

    return opening.open_engine(model, connector, exports_ray_metrics=is_in_ray())
