"""A request inside the simulated engine, between the step loop and its reader."""

import asyncio

from replicas.sim.generation import Generation
from replicas.sim.sequence import SimSequence
from router.core.errors import EngineError


class Inflight:
    """The bytes that the reader has not taken: at most one whole answer.

    Times are of the monotonic clock; `token_s` is when each sequence got its last token.
    """

    def __init__(self, generation: Generation, arrived_s: float) -> None:
        self.generation = generation
        self.arrived_s = arrived_s
        self.token_s: dict[SimSequence, float] = {}
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
