"""A replica's lease on the store of its node: as long as it is renewed, the store is there."""

import asyncio
import logging
from typing import Protocol

from router.core.types import ReplicaId

logger = logging.getLogger(__name__)

RENEW_INTERVAL_S = 1.0


class StoreHolder(Protocol):
    """The way to the store; makes it where it is gone. May raise anything."""

    async def renew(self, replica_id: ReplicaId, model: str) -> None: ...

    async def leave(self, replica_id: ReplicaId) -> None: ...


class StoreLease:
    """Of one replica that serves `model`; belongs to one event loop.

    A store that cannot be had costs cache hits, nothing else. `failures` counts renewals.
    """

    def __init__(
        self,
        store: StoreHolder,
        replica_id: ReplicaId,
        model: str,
        interval_s: float = RENEW_INTERVAL_S,
    ) -> None:
        self.failures = 0
        self._store = store
        self._replica_id = replica_id
        self._model = model
        self._interval_s = interval_s
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Holds the lease from here on."""
        self._task = asyncio.create_task(self._renew_forever(), name="kv-store-lease")

    async def end(self) -> None:
        """Gives it up. Idempotent."""
        task, self._task = self._task, None
        if task is None:
            return
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        try:
            await self._store.leave(self._replica_id)
        except Exception as error:
            logger.warning("the KV store hears of a replica's end by its silence: %r", error)

    async def _renew_forever(self) -> None:
        while True:
            try:
                await self._store.renew(self._replica_id, self._model)
            except Exception as error:
                if not self.failures % 30:
                    logger.warning("the KV store of this node cannot be had: %r", error)
                self.failures += 1
            await asyncio.sleep(self._interval_s)
