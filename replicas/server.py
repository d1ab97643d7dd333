"""What runs inside one replica: an engine, and the few calls that the ingress and Serve make.

A plain class; `replicas.deployment` makes it a Serve deployment.
"""

import asyncio
import dataclasses
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from replicas.engines.protocol import Engine, EngineInfo, EngineRequest
from router.configuration import ModelConfig, SimConfig

logger = logging.getLogger(__name__)


class LLMServer:
    """One replica of one model. `model` is a `ModelConfig` as plain data.

    The engine starts once, at the first call that needs it; Serve makes that call before it lets
    any request in. A start that failed fails every later call the same way, so that Serve
    replaces the replica.
    """

    def __init__(self, model: dict[str, Any]) -> None:
        self._model = ModelConfig.model_validate(model)
        self._engine: Engine | None = None
        self._starting: asyncio.Task[EngineInfo] | None = None

    async def record_replica_metadata(self) -> dict[str, Any]:
        """Serve's hook after construction: `EngineInfo` as plain data, for routers to read."""
        return dataclasses.asdict(await self._started())

    async def generate(self, request: EngineRequest) -> AsyncGenerator[bytes, None]:
        """See `Engine.generate`; called through a streaming handle."""
        engine = await self._running()
        async with aclosing(engine.generate(request)) as answer:
            async for part in answer:
                if isinstance(part, bytes):
                    yield part

    async def check_health(self) -> None:
        """Serve's hook: raises when this replica must be replaced."""
        engine = await self._running()
        await engine.check_health()

    async def reset_prefix_cache(self) -> bool:
        """Drops every reusable block; false where running requests hold some."""
        engine = await self._running()
        return await engine.reset_prefix_cache()

    async def num_unfinished(self) -> int:
        """Requests inside the engine; 0 means idle."""
        engine = await self._running()
        return engine.num_unfinished()

    async def shutdown(self) -> None:
        """Ends the engine and its processes. Idempotent."""
        if self._starting is not None:
            self._starting.cancel()
        if self._engine is not None:
            await self._engine.stop()

    async def _running(self) -> Engine:
        await self._started()
        assert self._engine is not None
        return self._engine

    async def _started(self) -> EngineInfo:
        """Shielded: a caller that gives up does not stop the start that others wait for."""
        if self._starting is None:
            self._starting = asyncio.create_task(self._start())
        return await asyncio.shield(self._starting)

    async def _start(self) -> EngineInfo:
        self._engine = await asyncio.to_thread(open_engine, self._model)
        info = await self._engine.start()
        logger.info("engine of model %s is up: %s", self._model.name, info)
        return info


def open_engine(model: ModelConfig) -> Engine:
    """The engine that the configuration names, not yet started. May import for seconds."""
    if model.engine == "sim":
        from replicas.engines.sim import SimEngine

        return SimEngine(
            model.sim or SimConfig(), model.name, stuck_after_s=model.health_check_timeout_s
        )
    from replicas.engines import vllm

    return vllm.open_engine(model, exports_ray_metrics=_is_in_ray())


def _is_in_ray() -> bool:
    import ray

    return bool(ray.is_initialized())
