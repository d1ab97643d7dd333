"""A replica that tests can break, and that reports what it does."""

import asyncio
import os
from collections.abc import AsyncGenerator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from replicas.engines.protocol import EngineRequest
from replicas.engines.sim import SimEngine
from replicas.engines.sim_faults import SimFault
from replicas.server import LLMServer


class FaultyServer(LLMServer):
    """Writes `served unfinished` into a file of `folder`, named after its model and process.

    The simulator has no tokenizer: where the engine is to render, each byte becomes a token.
    """

    def __init__(self, model: dict[str, Any], folder: str) -> None:
        super().__init__(model)
        self._path = Path(folder) / f"{os.getpid()}.{self._model.name}"
        self._served = 0
        self._last_salt: str | None = None
        self._reporting: asyncio.Task[None] | None = None

    async def generate(self, request: EngineRequest) -> AsyncGenerator[bytes, None]:
        self._served += 1
        self._last_salt = request.cache_salt
        if not request.prompts:
            ids = np.frombuffer(request.body, dtype=np.uint8).astype("<u4")
            request = replace(request, prompts=(ids.tobytes(),))
        async for part in super().generate(request):
            yield part

    async def record_replica_metadata(self) -> dict[str, Any]:
        metadata = await super().record_replica_metadata()
        self._reporting = asyncio.create_task(self._report())
        return metadata

    async def inject(self, fault: SimFault) -> None:
        assert isinstance(self._engine, SimEngine)
        self._engine.inject(fault)

    async def last_salt(self) -> str | None:
        return self._last_salt

    async def pid(self) -> int:
        return os.getpid()

    async def _report(self) -> None:
        while True:
            draft = self._path.with_suffix(".draft")
            draft.write_text(f"{self._served} {await self.num_unfinished()}")
            draft.replace(self._path)
            await asyncio.sleep(0.03)
