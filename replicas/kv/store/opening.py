"""A node's store by its name: made where it is missing, found where it is."""

import asyncio
from collections.abc import Awaitable, Callable

import ray
from ray.actor import ActorHandle
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from replicas.kv.store.actor import KVStoreActor
from replicas.kv.store.origins import WarmPrefix
from replicas.kv.store.peers import store_names
from replicas.kv.store.settings import StoreSettings
from replicas.kv.store.wire import unpack_prefixes
from router.core.types import ReplicaId, StoreId
from router.serve.actor_family import NAMESPACE, named

CALL_LIMIT_S = 10.0


def open_store(settings: StoreSettings) -> ActorHandle:
    """The store, made where there is none; two replicas at once get the same. Blocks a moment."""
    return (
        ray.remote(KVStoreActor)
        .options(
            name=settings.store_id,
            namespace=NAMESPACE,
            lifetime="detached",
            get_if_exists=True,
            num_cpus=0,
            max_restarts=0,
            scheduling_strategy=NodeAffinitySchedulingStrategy(settings.node_id, soft=False),
            enable_task_events=False,
        )
        .remote(settings.packed())
    )


class NodeStore:
    """A replica's way to the store of its node. Calls raise Ray's errors and `TimeoutError`."""

    def __init__(self, settings: StoreSettings) -> None:
        self._settings = settings
        self._actor: ActorHandle | None = None
        self._opening: asyncio.Task[ActorHandle] | None = None

    async def renew(self, replica_id: ReplicaId, model: str) -> None:
        """Makes the store where it is gone."""
        await self._call(lambda actor: actor.renew.remote(replica_id, model))

    async def leave(self, replica_id: ReplicaId) -> None:
        await self._call(lambda actor: actor.leave.remote(replica_id))

    async def hottest(
        self, model: str, max_prefixes: int, max_blocks: int
    ) -> list[tuple[StoreId, WarmPrefix]]:
        """What the application's stores have used most, this node's own first, each prefix once.

        What does not answer is left out.
        """
        names = await asyncio.to_thread(store_names, self._settings.application)
        names.sort(key=lambda name: name != self._settings.store_id)
        answers = await asyncio.gather(
            *(_hottest(name, model, max_prefixes, max_blocks) for name in names)
        )
        found: dict[tuple[bytes, str | None], tuple[StoreId, WarmPrefix]] = {}
        for name, prefixes in zip(names, answers, strict=True):
            for prefix in prefixes:
                found.setdefault((prefix.token_ids, prefix.cache_salt), (name, prefix))
        return list(found.values())[:max_prefixes]

    async def _call(self, call: Callable[[ActorHandle], Awaitable[None]]) -> None:
        async with asyncio.timeout(CALL_LIMIT_S):
            actor = self._actor or await self._opened()
            try:
                await call(actor)
            except ray.exceptions.RayActorError:
                self._actor = None
                raise

    async def _opened(self) -> ActorHandle:
        """One thread at a time looks for the store, however long that takes."""
        if self._opening is None:
            opening = asyncio.to_thread(open_store, self._settings)
            self._opening = asyncio.create_task(opening)
            self._opening.add_done_callback(self._found)
        return await asyncio.shield(self._opening)

    def _found(self, opening: "asyncio.Task[ActorHandle]") -> None:
        self._opening = None
        if not opening.cancelled() and opening.exception() is None:
            self._actor = opening.result()


async def _hottest(
    name: StoreId, model: str, max_prefixes: int, max_blocks: int
) -> list[WarmPrefix]:
    try:
        async with asyncio.timeout(CALL_LIMIT_S):
            actor = await asyncio.to_thread(named, name)
            if actor is None:
                return []
            return unpack_prefixes(await actor.hottest.remote(model, max_prefixes, max_blocks))
    except (ray.exceptions.RayError, TimeoutError):
        return []
