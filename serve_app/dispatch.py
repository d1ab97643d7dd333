"""From an admitted request to an answer that has begun: decision, deadline, retries, first bytes.

Until the first byte of an answer exists nothing was promised, so that a request whose replica died
is decided and sent again, and an error still has its own HTTP status. Afterwards nothing is ever
repeated.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from replicas.engines.protocol import EngineRequest
from replicas.settlement import Settlement
from router.core.errors import EngineDead, EngineError, NoReplica, WarmpathError
from router.core.types import ReplicaId
from serve_app.admission import Admitted
from serve_app.errors import CountFault, error_event, unexpected
from serve_app.observe.record import RequestRecord
from serve_app.routing import ClientHints, LiveRequest

logger = logging.getLogger(__name__)

MAX_ATTEMPTS = 3
RETRY_PAUSE_S = 0.05
PROGRESS_ITEMS = 32
"""Streamed items, of mostly one token each, between two reports to the index."""

Item = bytes | Settlement
Send = Callable[[EngineRequest], AsyncGenerator[Item, None]]
"""Sends a request to some replica and yields the answer; raises only `WarmpathError`s."""
Finish = Callable[[RequestRecord], None]


class RequestRouting(Protocol):
    """What a dispatcher needs of `serve_app.routing.ModelRouter`."""

    async def begin(
        self, admitted: Admitted, hints: ClientHints, excluded: Sequence[ReplicaId] = ()
    ) -> LiveRequest: ...

    def end(self, live: LiveRequest) -> None: ...


@dataclass(frozen=True, slots=True)
class Dispatcher:
    """Sends the requests of one model. Keeps nothing between requests.

    `finish` is called with the record of every answer that had begun, at its end; a turn's caller
    does so itself, after the commit.
    """

    router: RequestRouting
    send: Send
    finish: Finish
    first_byte_timeout_s: float
    retry_after_s: int
    count: CountFault

    async def begin(
        self, admitted: Admitted, hints: ClientHints, record: RequestRecord
    ) -> "Answer":
        """Returns once the first bytes are here; an answer in one piece is then here whole.

        Raises `WarmpathError`: `NoReplica` after `first_byte_timeout_s`, or where replica after
        replica died with the request.
        """
        try:
            async with asyncio.timeout(self.first_byte_timeout_s):
                return await self._attempts(admitted, hints, record)
        except TimeoutError:
            self.count("first_byte_timeout")
            raise NoReplica(
                f"No replica answered within {self.first_byte_timeout_s:g} s.",
                retry_after_s=self.retry_after_s,
            ) from None

    async def _attempts(
        self, admitted: Admitted, hints: ClientHints, record: RequestRecord
    ) -> "Answer":
        lost: list[ReplicaId] = []
        for attempt in range(MAX_ATTEMPTS):
            live = await self.router.begin(admitted, hints, lost)
            record.attempt(live)
            try:
                return await self._attempt(live, record)
            except EngineDead:
                self.count("replica_lost")
                logger.warning(
                    "request %s: replica lost before a byte", admitted.request.request_id
                )
                if live.replica_id is not None:
                    lost.append(live.replica_id)
                await asyncio.sleep(RETRY_PAUSE_S * 2**attempt)
        raise NoReplica(
            "The replicas that took this request died.", retry_after_s=self.retry_after_s
        )

    async def _attempt(self, live: LiveRequest, record: RequestRecord) -> "Answer":
        items = self._items(live, record)
        try:
            first = await anext(items)
        except StopAsyncIteration:
            raise EngineError("The engine gave no answer.") from None
        except BaseException:
            await items.aclose()
            raise
        if live.request.is_stream:
            live.first_token()
        record.begin()
        return Answer(first, items, live.request.request_id, self.count)

    async def _items(self, live: LiveRequest, record: RequestRecord) -> AsyncGenerator[bytes, None]:
        """The answer without its settlement. Ends the attempt, and the request if it had begun.

        It has always been started, so that its end comes even where nobody reads the answer.
        """
        items = self.send(live.request)
        try:
            count = 0
            async for item in items:
                if isinstance(item, Settlement):
                    record.settlement = item
                    continue
                yield item
                count += 1
                record.items = count
                if count % PROGRESS_ITEMS == 0:
                    live.progress(count)
        except BaseException as error:
            record.fail(error)
            raise
        finally:
            self.router.end(live)
            if record.has_begun and not record.ends_with_commit:
                self.finish(record)
            await items.aclose()


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

    async def close(self) -> None:
        """Ends the request at its replica, if it has not ended. Idempotent."""
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
