"""From an admitted request to an answer that has begun: deadline, retries, first bytes.

Until the first byte of an answer exists nothing was promised, so that a request whose replica died
is sent again and an error still has its own HTTP status. Afterwards nothing is ever repeated.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass

from replicas.engines.protocol import EngineRequest
from router.core.errors import EngineDead, EngineError, NoReplica, WarmpathError
from serve_app.errors import CountFault, error_event, unexpected

logger = logging.getLogger(__name__)

MAX_ATTEMPTS = 3
RETRY_PAUSE_S = 0.05

Send = Callable[[EngineRequest], AsyncGenerator[bytes, None]]
"""Sends a request to some replica and yields the answer; raises only `WarmpathError`s."""


@dataclass(frozen=True, slots=True)
class Dispatcher:
    """Sends the requests of one model. Keeps nothing between requests."""

    send: Send
    first_byte_timeout_s: float
    retry_after_s: int
    count: CountFault

    async def begin(self, request: EngineRequest) -> "Answer":
        """Returns once the first bytes are here; an answer in one piece is then here whole.

        Raises `WarmpathError`: `NoReplica` after `first_byte_timeout_s`, or where replica after
        replica died with the request.
        """
        try:
            async with asyncio.timeout(self.first_byte_timeout_s):
                return await self._attempts(request)
        except TimeoutError:
            self.count("first_byte_timeout")
            raise NoReplica(
                f"No replica answered within {self.first_byte_timeout_s:g} s.",
                retry_after_s=self.retry_after_s,
            ) from None

    async def _attempts(self, request: EngineRequest) -> "Answer":
        for attempt in range(MAX_ATTEMPTS):
            try:
                return await self._attempt(request)
            except EngineDead:
                self.count("replica_lost")
                logger.warning("request %s: replica lost before a byte", request.request_id)
                await asyncio.sleep(RETRY_PAUSE_S * 2**attempt)
        raise NoReplica(
            "The replicas that took this request died.", retry_after_s=self.retry_after_s
        )

    async def _attempt(self, request: EngineRequest) -> "Answer":
        items = self.send(request)
        try:
            first = await anext(items)
        except StopAsyncIteration:
            raise EngineError("The engine gave no answer.") from None
        except BaseException:
            await items.aclose()
            raise
        return Answer(first, items, request.request_id, self.count)


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer that has begun."""

    first: bytes
    items: AsyncGenerator[bytes, None]
    request_id: str
    count: CountFault

    async def whole(self) -> bytes:
        """All of it. Raises `WarmpathError`: nothing was sent yet."""
        try:
            return b"".join([self.first, *[item async for item in self.items]])
        finally:
            await self.items.aclose()

    async def stream(self) -> AsyncGenerator[bytes, None]:
        """Server-sent events as they come. A fault becomes one error event and the end."""
        try:
            yield self.first
            async for item in self.items:
                yield item
        except WarmpathError as error:
            self.count("failed_in_stream")
            logger.warning("request %s failed in its stream: %s", self.request_id, error.message)
            yield error_event(error)
        except Exception as error:
            yield error_event(unexpected(error, self.count, "streaming an answer"))
        finally:
            await self.items.aclose()
