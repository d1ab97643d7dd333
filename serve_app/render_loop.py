"""A thread with an event loop of its own, so that rendering never holds up what is being served."""

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

SHORT_BODY_BYTES = 16 * 1024
"""Admitting a body costs the serving loop at most some milliseconds up to here, and less than the
way to another thread and back.
"""


class RenderLoop:
    """Runs coroutines beside the serving loop; the heavy steps go on to the renderers' threads."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="render-loop", daemon=True
        )
        self._thread.start()

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Awaits `work` on the thread's loop; a cancelled caller cancels it there."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    def close(self) -> None:
        """Stops the thread; what still runs there is abandoned. Idempotent."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()
