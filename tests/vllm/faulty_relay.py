"""An engine whose events come through a relay that loses, doubles, reorders or delays them."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable
from dataclasses import replace
from pathlib import Path

from zmq.asyncio import Context
from zmq.constants import PUB, SUB, SUBSCRIBE

from replicas.engines.protocol import Engine, EngineInfo, EngineReport, EngineRequest

Frames = list[bytes]
Fault = Callable[[Frames], Iterable[Frames]]
"""What becomes of one batch: the batches that leave the relay in its place."""


def faithful(frames: Frames) -> Iterable[Frames]:
    yield frames


def doubled(frames: Frames) -> Iterable[Frames]:
    yield from (frames, frames)


def lost(frames: Frames) -> Iterable[Frames]:
    return ()


class EverySecondLost:
    def __init__(self) -> None:
        self._seen = 0

    def __call__(self, frames: Frames) -> Iterable[Frames]:
        self._seen += 1
        return [frames] if self._seen % 2 else []


class Swapped:
    """Each pair of batches in reverse."""

    def __init__(self) -> None:
        self._held: Frames | None = None

    def __call__(self, frames: Frames) -> Iterable[Frames]:
        held, self._held = self._held, None
        if held is None:
            self._held = frames
            return []
        return [frames, held]


class RelayedEngine:
    """An engine as it is, but for its events, to which `fault` happens, `delay_s` later."""

    def __init__(self, engine: Engine, folder: Path) -> None:
        self.fault: Fault = faithful
        self.delay_s = 0.0
        self._engine = engine
        self._endpoint = f"ipc://{folder}/relayed"
        self._context = Context()
        self._relaying: asyncio.Task[None] | None = None
        self.generate: Callable[[EngineRequest], AsyncGenerator[bytes | EngineReport, None]]
        self.generate = engine.generate
        self.reset_prefix_cache = engine.reset_prefix_cache
        self.num_unfinished = engine.num_unfinished
        self.check_health = engine.check_health

    async def start(self) -> EngineInfo:
        info = await self._engine.start()
        assert info.kv_events_endpoint is not None
        self._relaying = asyncio.create_task(self._relay(info.kv_events_endpoint))
        return replace(info, kv_events_endpoint=self._endpoint)

    async def stop(self) -> None:
        if self._relaying is not None:
            self._relaying.cancel()
        await self._engine.stop()
        self._context.destroy(linger=0)

    async def _relay(self, endpoint: str) -> None:
        source, sink = self._context.socket(SUB), self._context.socket(PUB)
        source.set(SUBSCRIBE, b"")
        source.connect(endpoint)
        sink.bind(self._endpoint)
        while True:
            frames = await source.recv_multipart()
            if self.delay_s:
                await asyncio.sleep(self.delay_s)
            for outgoing in self.fault(frames):
                await sink.send_multipart(outgoing)
