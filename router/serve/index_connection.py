"""The way from a process to the block index's actor: finds it by name, follows its successors."""

import asyncio
from collections.abc import Awaitable, Callable

import ray
from ray.actor import ActorHandle

from router.core.errors import IndexUnavailable
from router.core.types import StoreId
from router.serve.generations import find_index, named
from router.serve.store_wire import StoredSizes, decode_stored_sizes
from router.serve.wire import Landing, Receipt, decode_landing, decode_receipt

_MAX_HOPS = 3

Call = Callable[[ActorHandle], Awaitable[bytes]]


class NamedIndex:
    """One process's way to the index of one application and model. Raises `IndexUnavailable`."""

    def __init__(self, application: str, model: str) -> None:
        self._application = application
        self._model = model
        self._actor: ActorHandle | None = None
        self._search: asyncio.Task[ActorHandle | None] | None = None

    async def exchange(self, flight: bytes) -> Landing:
        for _ in range(_MAX_HOPS):
            landing = decode_landing(await self._call(lambda actor: actor.exchange.remote(flight)))
            if landing.successor is None:
                return landing
            await self._follow(landing.successor)
        raise IndexUnavailable("the block index has too many successors")

    async def register(self, registration: bytes) -> Receipt:
        return await self._deliver(lambda actor: actor.register.remote(registration))

    async def apply(self, events: bytes) -> Receipt:
        return await self._deliver(lambda actor: actor.apply.remote(events))

    async def snapshot(self, part: bytes) -> Receipt:
        return await self._deliver(lambda actor: actor.snapshot.remote(part))

    async def forget(self, registration: bytes) -> Receipt:
        return await self._deliver(lambda actor: actor.forget.remote(registration))

    async def report_stored(self, news: bytes) -> Receipt:
        return await self._deliver(lambda actor: actor.report_stored.remote(news))

    async def forget_store(self, store_id: StoreId) -> Receipt:
        return await self._deliver(lambda actor: actor.forget_store.remote(store_id))

    async def stored_sizes(self, ends: bytes) -> StoredSizes:
        return decode_stored_sizes(await self._call(lambda actor: actor.stored_sizes.remote(ends)))

    async def _deliver(self, call: Call) -> Receipt:
        for _ in range(_MAX_HOPS):
            receipt = decode_receipt(await self._call(call))
            if receipt.successor is None:
                return receipt
            await self._follow(receipt.successor)
        raise IndexUnavailable("the block index has too many successors")

    async def _call(self, call: Call) -> bytes:
        actor = self._actor or await self._resolve()
        try:
            return await call(actor)
        except ray.exceptions.ActorDiedError as error:
            self._actor = None
            raise IndexUnavailable("the block index is gone") from error
        except ray.exceptions.RayError as error:
            raise IndexUnavailable("the block index cannot be reached") from error

    async def _resolve(self) -> ActorHandle:
        """Many callers share one search, which outlives any of them being cancelled."""
        if self._search is None:
            search = asyncio.to_thread(find_index, self._application, self._model)
            self._search = asyncio.create_task(search)
            self._search.add_done_callback(self._found)
        actor = await asyncio.shield(self._search)
        if actor is None:
            raise IndexUnavailable("there is no block index")
        return actor

    def _found(self, search: "asyncio.Task[ActorHandle | None]") -> None:
        self._search = None
        if not search.cancelled() and search.exception() is None:
            self._actor = search.result()

    async def _follow(self, successor: str) -> None:
        self._actor = await asyncio.to_thread(named, successor)
