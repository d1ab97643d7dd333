"""One node's KV store as a Ray actor: owner of the objects, so that they outlive who made them."""

import asyncio
import logging
import time
from collections.abc import Sequence
from typing import Any

import ray

from replicas.kv.store.claim_rounds import ClaimRounds
from replicas.kv.store.contents import StoreContents, StoredObject
from replicas.kv.store.directory_news import DirectoryNews
from replicas.kv.store.handover import hand_over
from replicas.kv.store.meters import StoreMeters
from replicas.kv.store.objects import Bytes
from replicas.kv.store.origins import Origins
from replicas.kv.store.settings import StoreSettings, unpack_settings
from replicas.kv.store.tenure import Tenure
from replicas.kv.store.tiered import TieredContents
from replicas.kv.store.tiers import lower_tiers
from replicas.kv.store.wire import (
    pack_objects,
    pack_prefixes,
    unpack_objects,
    unpack_origins,
)
from router.core.types import ReplicaId
from router.serve.claims_questions import ClaimsQuestions
from router.serve.index_connection import NamedIndex

logger = logging.getLogger(__name__)

MAX_OBJECTS = 262_144
MEMORY_SHARE = 0.6
"""Of the node's object store, at most: what is more would make Ray spill, and a load from spilled
memory takes longer than computing."""
WAITING_SHARE = 0.125
"""Of the store's memory, beyond it, for what waits to be written to a lower tier."""
MIN_WAITING_BYTES = 16 * 2**20
RISE_LIMIT_S = 5.0
"""A lower tier that takes longer is a miss for who asks; engines wait less."""
TICK_S = 1.0
FADE_INTERVAL_S = 600.0
"""After so long a use of an object counts half."""


class RayKeeper:
    """Bytes in the node's object store, owned by this process."""

    def keep(self, data: Bytes) -> ray.ObjectRef:
        return ray.put(data)

    def look(self, handle: ray.ObjectRef) -> Bytes:
        data: Bytes = ray.get(handle, timeout=RISE_LIMIT_S)
        return data


class KVStoreActor:
    """Named and detached, one for each application and node; `opening` makes it.

    Contents belong to its event loop; bytes are moved on other threads. It ends by itself when no
    replica of its node needs it any more.
    """

    def __init__(self, settings: bytes) -> None:
        self._settings = unpack_settings(settings)
        memory_bytes = _memory_bytes(self._settings)
        self._contents: TieredContents[ray.ObjectRef] = TieredContents(
            StoreContents(memory_bytes, MAX_OBJECTS),
            RayKeeper(),
            lower_tiers(self._settings),
            waiting_bytes=max(int(memory_bytes * WAITING_SHARE), MIN_WAITING_BYTES),
        )
        self._tenure = Tenure(self._settings.lease_s, self._settings.linger_s, time.monotonic())
        self._news = DirectoryNews(self._settings.store_id, self._contents.objects, self._index)
        self._claims = ClaimRounds(
            self._contents,
            ClaimsQuestions(self._settings.application),
            self._settings.unclaimed_after_s,
        )
        self._origins = Origins()
        self._meters = StoreMeters(self._settings.application)
        self._fades_at = time.monotonic() + FADE_INTERVAL_S
        self._faults = 0
        self._tasks = [
            asyncio.create_task(self._live(), name="kv-store-life"),
            asyncio.create_task(self._heed_claims(), name="kv-store-claims"),
        ]

    async def renew(self, replica_id: str, model: str) -> None:
        """A replica of this node that serves `model` needs the store."""
        self._tenure.renew(ReplicaId(replica_id), time.monotonic())
        self._news.follow(model)

    async def leave(self, replica_id: str) -> None:
        self._tenure.end(ReplicaId(replica_id), time.monotonic())

    async def offer(self, heads: bytes, origins: bytes) -> list[bool]:
        """Which of these objects are wanted; those that are here count as used."""
        wanted = []
        for stored, origin in zip(unpack_objects(heads), unpack_origins(origins), strict=True):
            wanted.append(self._contents.offer(stored))
            self._origins.offered(stored, origin, is_here=not wanted[-1])
        return wanted

    async def put(self, heads: bytes, *objects: Any) -> None:
        """Takes objects in, in the order of their heads. One whose size is not what its head says
        is left out."""
        for stored, data in zip(unpack_objects(heads), objects, strict=True):
            if data.nbytes == stored.size_bytes and self._contents.offer(stored):
                self._contents.put(stored, await asyncio.to_thread(ray.put, data))
                self._take_origin(stored)
        self._spread()

    async def locate(self, keys: Sequence[bytes]) -> list[list[ray.ObjectRef]]:
        """A reference in a list for each object that is here, an empty list for the others."""
        found = await self._contents.fetch(keys, RISE_LIMIT_S)
        self._origins.use(keys)
        return [[] if ref is None else [ref] for ref in found]

    async def discard(self, keys: Sequence[bytes]) -> None:
        self._contents.discard(keys)
        self._spread()

    async def hottest(self, model: str, max_prefixes: int, max_blocks: int) -> bytes:
        """The prefixes of a model that were used most; see `unpack_prefixes`."""
        return pack_prefixes(self._origins.hottest(model, max_prefixes, max_blocks))

    async def listing(self) -> bytes:
        """All that is here; see `unpack_objects`."""
        return pack_objects(self._contents.objects())

    async def stats(self) -> dict[str, float]:
        """Counts by kind; sizes in bytes, times in seconds."""
        return self._counts()

    def _counts(self) -> dict[str, float]:
        return {
            "objects": len(self._contents),
            "bytes": self._contents.used_bytes,
            "room_bytes": self._contents.room_bytes,
            "replicas": len(self._tenure),
            "faults": self._faults,
            "unanswered_claims": self._claims.unanswered,
            **self._news.counts(),
            **self._contents.counts(),
        }

    def _spread(self) -> None:
        changes = self._contents.take_changes()
        self._claims.note(changes, time.monotonic())
        self._origins.remove(changes.removed)
        self._news.note(changes)

    def _take_origin(self, stored: StoredObject) -> None:
        """Not of an object that found no room."""
        if self._contents.get(stored.key) is not None:
            self._origins.came(stored)

    def _index(self, model: str) -> NamedIndex:
        return NamedIndex(self._settings.application, model)

    async def _live(self) -> None:
        """Until nobody needs the store; whatever fails is tried again with the next tick."""
        while not self._tenure.is_over(time.monotonic()):
            await asyncio.sleep(TICK_S)
            try:
                self._spread()
                self._meters.report(self._counts())
                self._fade(time.monotonic())
            except Exception:
                self._faults += 1
                logger.exception("a KV store's own work failed")
        await self._end()

    def _fade(self, now: float) -> None:
        if now >= self._fades_at:
            self._fades_at = now + FADE_INTERVAL_S
            self._origins.fade()

    async def _heed_claims(self) -> None:
        """What contexts claim and what they claim no more, again and again."""
        while True:
            await asyncio.sleep(self._settings.claims_interval_s)
            try:
                await self._claims.run(time.monotonic)
                self._spread()
            except Exception:
                self._faults += 1
                logger.exception("the claims of contexts were not heeded")

    async def _end(self) -> None:
        logger.info("no replica of this node needs its KV store any more; it ends")
        try:
            async with asyncio.timeout(self._settings.handover_s):
                await hand_over(self._contents, self._origins, self._settings)
        except Exception as error:
            logger.warning("what contexts claim was not handed over: %r", error)
        await self._news.close()
        ray.kill(ray.get_runtime_context().current_actor, no_restart=True)


def _memory_bytes(settings: StoreSettings) -> int:
    nodes = [node for node in ray.nodes() if node["NodeID"] == settings.node_id]
    capacity = nodes[0]["Resources"].get("object_store_memory", 0.0) if nodes else 0.0
    if not capacity:
        return settings.memory_bytes
    allowed = int(capacity * MEMORY_SHARE)
    if allowed < settings.memory_bytes:
        logger.warning("the KV store of this node takes %d bytes, as Ray has no more", allowed)
    return min(settings.memory_bytes, allowed)
