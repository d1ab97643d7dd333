"""The way from a process to the context manager: makes or finds it, follows its successors."""

import asyncio

import ray
from ray.actor import ActorHandle

from router.contexts.settings import ContextSettings
from router.contexts.wire import Landing, decode_landing
from router.core.errors import ContextsUnavailable
from router.serve.actor_family import named
from router.serve.context_generations import open_contexts

_MAX_HOPS = 3


class NamedContexts:
    """Through Ray, to the actor of that name in whichever generation."""

    def __init__(self, settings: ContextSettings) -> None:
        self._settings = settings
        self._actor: ActorHandle | None = None
        self._search: asyncio.Task[ActorHandle] | None = None

    async def open(self) -> None:
        await self._resolve()

    async def exchange(self, flight: bytes) -> Landing:
        for _ in range(_MAX_HOPS):
            landing = decode_landing(await self._call(flight))
            if landing.successor is None and landing.refusal is None:
                return landing
            if landing.successor is None:
                raise ContextsUnavailable(landing.refusal or "")
            self._actor = await asyncio.to_thread(named, landing.successor)
        raise ContextsUnavailable("The context manager has too many successors.")

    async def problem(self) -> str | None:
        """Why contexts are not to be had; None where they are. Raises `ContextsUnavailable`."""
        actor = self._actor or await self._resolve()
        try:
            problem: str | None = await actor.problem.remote()
        except ray.exceptions.RayError as error:
            raise ContextsUnavailable("The context manager cannot be reached.") from error
        return problem

    async def _call(self, flight: bytes) -> bytes:
        actor = self._actor or await self._resolve()
        try:
            landing: bytes = await actor.exchange.remote(flight)
        except ray.exceptions.ActorUnavailableError as error:
            raise ContextsUnavailable("The context manager is starting again.") from error
        except ray.exceptions.RayError as error:
            self._actor = None
            raise ContextsUnavailable("The context manager cannot be reached.") from error
        return landing

    async def _resolve(self) -> ActorHandle:
        """Many callers share one search, which outlives any of them being cancelled."""
        if self._search is None:
            search = asyncio.to_thread(open_contexts, self._settings)
            self._search = asyncio.create_task(search)
            self._search.add_done_callback(self._found)
        return await asyncio.shield(self._search)

    def _found(self, search: "asyncio.Task[ActorHandle]") -> None:
        self._search = None
        if not search.cancelled() and search.exception() is None:
            self._actor = search.result()
