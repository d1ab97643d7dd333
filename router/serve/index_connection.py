"""The way from a process to the block index's actor: finds it by name, follows its successors."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping

import ray
from ray.actor import ActorHandle

from router.core.errors import IndexUnavailable
from router.core.types import StoreId
from router.serve.generations import find_index, named
from router.serve.index_socket import Operation, SocketCaller
from router.serve.store_wire import StoredSizes, decode_stored_sizes
from router.serve.wire import Landing, Receipt, decode_landing, decode_receipt

_log = logging.getLogger(__name__)

_MAX_HOPS = 3

Call = Callable[[ActorHandle], Awaitable[bytes]]


class NearActor:
    """Calls to one actor: to its socket where that is on this node, through Ray elsewhere."""

    def __init__(self, actor: ActorHandle) -> None:
        self.actor = actor
        self._connecting = asyncio.create_task(_connected(actor))

    async def call(self, operation: Operation, message: bytes) -> bytes:
        """Raises Ray's errors and `ConnectionError`; after either, this is of no more use."""
        caller = await asyncio.shield(self._connecting)
        if caller is None:
            answer: bytes = await _REMOTE[operation](self.actor, message)
            return answer
        return await caller.call(operation, message)

    def close(self) -> None:
        """Who still waits gets `ConnectionError`."""
        self._connecting.add_done_callback(_hang_up)


_REMOTE: Mapping[Operation, Callable[[ActorHandle, bytes], Awaitable[bytes]]] = {
    Operation.EXCHANGE: lambda actor, message: actor.exchange.remote(message),
    Operation.APPLY: lambda actor, message: actor.apply.remote(message),
    Operation.SNAPSHOT: lambda actor, message: actor.snapshot.remote(message),
}


class NamedIndex:
    """One process's way to the index of one application and model. Raises `IndexUnavailable`."""

    def __init__(self, application: str, model: str) -> None:
        self._application = application
        self._model = model
        self._actor: ActorHandle | None = None
        self._near: NearActor | None = None
        self._search: asyncio.Task[ActorHandle | None] | None = None

    async def exchange(self, flight: bytes) -> Landing:
        for _ in range(_MAX_HOPS):
            landing = decode_landing(await self._call(self._often(Operation.EXCHANGE, flight)))
            if landing.successor is None:
                return landing
            await self._follow(landing.successor)
        raise IndexUnavailable("the block index has too many successors")

    async def register(self, registration: bytes) -> Receipt:
        return await self._deliver(lambda actor: actor.register.remote(registration))

    async def apply(self, events: bytes) -> Receipt:
        return await self._deliver(self._often(Operation.APPLY, events))

    async def snapshot(self, part: bytes) -> Receipt:
        return await self._deliver(self._often(Operation.SNAPSHOT, part))

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
        except (ray.exceptions.RayError, ConnectionError) as error:
            self._actor = None
            raise IndexUnavailable("the block index is gone or cannot be reached") from error

    def _often(self, operation: Operation, message: bytes) -> Call:
        return lambda actor: self._near_to(actor).call(operation, message)

    def _near_to(self, actor: ActorHandle) -> NearActor:
        if self._near is None or self._near.actor is not actor:
            if self._near is not None:
                self._near.close()
            self._near = NearActor(actor)
        return self._near

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


async def _connected(actor: ActorHandle) -> SocketCaller | None:
    """To the actor's socket; None where that is on another node or out of reach."""
    node_id, address = await actor.socket_address.remote()
    if node_id != ray.get_runtime_context().get_node_id():
        return None
    try:
        return await SocketCaller.connect(address)
    except OSError as error:
        _log.info("calls to the block index on this node go through Ray: %s", error)
        return None


def _hang_up(connecting: "asyncio.Task[SocketCaller | None]") -> None:
    if not connecting.cancelled() and connecting.exception() is None:
        caller = connecting.result()
        if caller is not None:
            caller.close()
