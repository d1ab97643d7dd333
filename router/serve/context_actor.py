"""The Ray shell of the context manager: opens the journal, answers flights, hands over.

Asynchronous, because turns wait for each other and commits for the disk.
"""

import asyncio
import logging

import msgspec
import ray
from ray.actor import ActorHandle

from router.contexts.journals import open_journal
from router.contexts.settings import unpack_settings
from router.contexts.wire import PROTOCOL, Failed, Landing, Reply, encode
from router.core.errors import ContextsUnavailable, JournalError, JournalRefused
from router.serve.context_meters import ContextMeters
from router.serve.context_service import ContextService, open_service

_log = logging.getLogger(__name__)

_GRACE_S = 5.0
"""How long a retired actor goes on telling its callers where to turn."""
_ALONE_S = 1.0
"""After so long without a word from anybody it is no successor, but one that was restarted."""
_OPEN_LIMIT_S = 5.0
_RETIRE_LIMIT_S = 20.0
_TRY_AGAIN_S = 1.0
_REFUSED_TRY_AGAIN_S = 30.0
_REPORT_INTERVAL_S = 1.0


class ContextManager:
    """Named and detached, one for each application; `context_generations` makes it."""

    def __init__(self, settings: bytes) -> None:
        self._settings = unpack_settings(settings)
        self._service: ContextService | None = None
        self._problem = "The contexts are being read."
        self._successor: str | None = None
        self._opened = asyncio.Event()
        self._may_open = asyncio.Event()
        self._is_heir = False
        self._tasks = [asyncio.create_task(self._open()), asyncio.create_task(self._report())]

    async def hello(self, protocol: int) -> tuple[int, str]:
        """Own protocol and digest of the settings. Who speaks another `protocol` succeeds this."""
        if protocol == PROTOCOL:
            self._go_ahead()
        return PROTOCOL, self._settings.digest

    async def configure(self, settings: bytes) -> None:
        """Another life under other settings, from the journal that these name."""
        self._settings = unpack_settings(settings)
        await self._begin_again()

    async def exchange(self, flight: bytes) -> bytes:
        """See `wire.Flight` and `wire.Landing`."""
        service = None
        if self._successor is None:
            self._go_ahead()
            service = await self._opened_service()
        replies = [] if service is None else await service.exchange(flight)
        if service is None or (service is not self._service and any(map(_is_refused, replies))):
            return encode(Landing([], self._successor, self._problem))
        return encode(Landing(replies))

    async def stats(self) -> bytes:
        """Counts by part, as a MessagePack map; empty while the journal is not open."""
        service = self._service
        return msgspec.msgpack.encode(
            {} if service is None else service.gauges() | service.counts()
        )

    async def problem(self) -> str | None:
        """Why contexts are not to be had, in words for whoever runs the cluster; None: they are."""
        service = await self._opened_service()
        return self._problem if service is None else None

    async def inherit(self, predecessor: ActorHandle, own_name: str) -> None:
        """Takes over the journal once the predecessor has let go of it, and stops that one later.

        Idempotent. A predecessor that does not answer is fenced by the journal itself.
        """
        if self._is_heir:
            return
        self._is_heir = True
        try:
            async with asyncio.timeout(_RETIRE_LIMIT_S):
                await predecessor.retire.remote(own_name)
        except (ray.exceptions.RayError, TimeoutError) as error:
            _log.warning("the former context manager did not let go of its journal: %s", error)
        self._may_open.set()
        self._tasks.append(asyncio.create_task(_stop_later(predecessor)))

    async def retire(self, successor: str) -> None:
        """From here on callers are sent to `successor`; the journal is complete and closed."""
        self._successor = successor
        await self._close("The contexts have moved.")

    def _go_ahead(self) -> None:
        """Somebody needs the contexts; an heir waits for its predecessor all the same."""
        if not self._is_heir:
            self._may_open.set()

    async def _begin_again(self) -> None:
        await self._close("The contexts are being read again.")
        self._opened.clear()
        self._tasks[0].cancel()
        self._tasks[0] = asyncio.create_task(self._open())

    async def _close(self, reason: str) -> None:
        service, self._service = self._service, None
        self._problem = reason
        if service is not None:
            await service.close(reason)

    async def _opened_service(self) -> ContextService | None:
        if self._service is None and not self._opened.is_set():
            try:
                await asyncio.wait_for(self._opened.wait(), _OPEN_LIMIT_S)
            except TimeoutError:
                return None
        return self._service

    async def _open(self) -> None:
        """Tries until it succeeds: Redis may come back, a person may put a journal right."""
        await self._wait_for_leave()
        while self._successor is None:
            journal = open_journal(self._settings.journal, self._settings.application)
            try:
                self._service = await open_service(journal, self._settings, self._end)
            except Exception as error:
                journal.close()
                self._tell_problem(error)
                is_refused = isinstance(error, JournalRefused)
                await asyncio.sleep(_REFUSED_TRY_AGAIN_S if is_refused else _TRY_AGAIN_S)
            else:
                self._opened.set()
                return

    def _tell_problem(self, error: Exception) -> None:
        """The same problem is told once."""
        problem = error.message if isinstance(error, JournalError) else repr(error)
        if problem != self._problem:
            is_ours = isinstance(error, JournalError)
            _log.error("there are no contexts: %s", problem, exc_info=None if is_ours else error)
        self._problem = problem

    async def _wait_for_leave(self) -> None:
        """An heir must not take the journal from a predecessor that still writes."""
        try:
            await asyncio.wait_for(self._may_open.wait(), _ALONE_S)
        except TimeoutError:
            if self._is_heir:
                await self._may_open.wait()

    def _end(self) -> None:
        """Another life has the journal: this actor is not the one to ask any more."""
        ray.kill(ray.get_runtime_context().current_actor, no_restart=True)

    async def _report(self) -> None:
        meters = ContextMeters(self._settings.application)
        while True:
            await asyncio.sleep(_REPORT_INTERVAL_S)
            try:
                if self._service is not None:
                    meters.report(self._service)
            except Exception:
                _log.exception("the figures of contexts could not be reported")


def _is_refused(reply: Reply) -> bool:
    return isinstance(reply, Failed) and reply.error == ContextsUnavailable.__name__


async def _stop_later(predecessor: ActorHandle) -> None:
    await asyncio.sleep(_GRACE_S)
    ray.kill(predecessor, no_restart=True)
