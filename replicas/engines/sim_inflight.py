"""A request inside the simulated engine, between the step loop and its reader."""

import asyncio

from replicas.sim.generation import Generation
from router.core.errors import EngineError


class Inflight:
    """The bytes that the reader has not taken: at most one whole answer."""

    def __init__(self, generation: Generation) -> None:
        self.generation = generation
        self._ready = asyncio.Event()
        self._parts: list[bytes] = []
        self._error: EngineError | None = None
        self._is_closed = False

    def put(self, part: bytes) -> None:
        if part:
            self._parts.append(part)
            self._ready.set()

    def close(self, error: EngineError | None = None) -> None:
        """Nothing more follows but, where given, the error."""
        self._error, self._is_closed = error, True
        self._ready.set()

    async def take(self) -> bytes | None:
        """All that is there, waiting for something; at the end `None` or the error."""
        await self._ready.wait()
        parts = b"".join(self._parts)
        self._parts.clear()
        if not self._is_closed:
            self._ready.clear()
        if not parts and self._error is not None:
            raise self._error
        return parts or None
