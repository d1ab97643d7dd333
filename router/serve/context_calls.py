"""One operation on contexts until it is answered: repeated where it was lost, within a deadline."""

import asyncio
from typing import TypeVar

from router.contexts.faults import error_of
from router.contexts.wire import Delete, Done, Failed, Operation, Reply
from router.core.errors import ContextNotFound, ContextsUnavailable, MalformedMessage
from router.serve.context_lanes import Lane

R = TypeVar("R", bound=Reply)


class RepeatedCalls:
    """Every operation is idempotent. Once `is_closed` nothing is repeated any more."""

    def __init__(self, limit_s: float, repeat_after_s: float) -> None:
        self._limit_s = limit_s
        self._repeat_after_s = repeat_after_s
        self.is_closed = False

    async def ask(
        self, operation: Operation, lane: Lane, kind: type[R], limit_s: float | None = None
    ) -> R:
        """Raises what the manager refuses with, and `ContextsUnavailable` past the deadline."""
        try:
            async with asyncio.timeout(limit_s or self._limit_s):
                reply = await self._answer(operation, lane)
        except TimeoutError:
            raise ContextsUnavailable("The context manager does not answer.") from None
        if isinstance(reply, Failed):
            raise error_of(reply)
        if not isinstance(reply, kind):
            raise MalformedMessage("the context manager answered another question")
        return reply

    async def _answer(self, operation: Operation, lane: Lane) -> Reply:
        reply = await self._once(operation, lane)
        is_first = True
        while reply is None:
            is_first = False
            await asyncio.sleep(self._repeat_after_s)
            reply = await self._once(operation, lane)
        was_deleted = isinstance(operation, Delete) and not is_first
        if was_deleted and isinstance(reply, Failed) and reply.error == ContextNotFound.__name__:
            return Done()
        return reply

    async def _once(self, operation: Operation, lane: Lane) -> Reply | None:
        """None where it is not known whether it was applied."""
        try:
            return await lane.send(operation)
        except ContextsUnavailable:
            if self.is_closed:
                raise
            return None
