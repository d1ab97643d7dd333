"""What a store that ends gives to another of its application: what contexts claim."""

import asyncio
from collections.abc import Iterator, Sequence

import ray
from ray.actor import ActorHandle

from replicas.kv.store.contents import StoredObject
from replicas.kv.store.origins import Origins
from replicas.kv.store.peers import store_names
from replicas.kv.store.settings import StoreSettings
from replicas.kv.store.tiered import TieredContents
from replicas.kv.store.wire import pack_objects, pack_origins
from router.serve.actor_family import named

BATCH_BYTES = 64 * 2**20
ANSWER_LIMIT_S = 5.0


async def hand_over(
    contents: TieredContents[ray.ObjectRef], origins: Origins, settings: StoreSettings
) -> int:
    """Gives it to the store with the most room, the latest used first; returns how many objects.

    Raises Ray's errors where that one is gone. The caller bounds the time.
    """
    claimed = contents.claimed()
    heir = await _roomiest(await asyncio.to_thread(peers, settings)) if claimed else None
    if heir is None:
        return 0
    given = 0
    for batch in _batches(claimed):
        known = pack_origins([origins.get(stored.key) for stored in batch])
        wanted = await heir.offer.remote(pack_objects(batch), known)
        given += await _give(heir, contents, [o for o, w in zip(batch, wanted, strict=True) if w])
    return given


def peers(settings: StoreSettings) -> list[ActorHandle]:
    """The application's other stores; blocks."""
    names = store_names(settings.application)
    found = [named(name) for name in names if name != settings.store_id]
    return [actor for actor in found if actor is not None]


async def _roomiest(stores: Sequence[ActorHandle]) -> ActorHandle | None:
    """Of those that answer and are needed themselves; None where there is none."""
    answers = await asyncio.gather(*map(_room, stores))
    room_bytes = [answer for answer in answers if answer is not None]
    if not room_bytes:
        return None
    return stores[answers.index(max(room_bytes))]


async def _room(store: ActorHandle) -> int | None:
    try:
        async with asyncio.timeout(ANSWER_LIMIT_S):
            stats: dict[str, int] = await store.stats.remote()
    except (ray.exceptions.RayError, TimeoutError):
        return None
    return stats["room_bytes"] if stats["replicas"] else None


def _batches(objects: Sequence[StoredObject]) -> Iterator[list[StoredObject]]:
    batch: list[StoredObject] = []
    for stored in objects:
        if batch and sum(o.size_bytes for o in batch) + stored.size_bytes > BATCH_BYTES:
            yield batch
            batch = []
        batch.append(stored)
    if batch:
        yield batch


async def _give(
    heir: ActorHandle, contents: TieredContents[ray.ObjectRef], objects: Sequence[StoredObject]
) -> int:
    found = [(stored, contents.find(stored.key)) for stored in objects]
    present = [(stored, ref) for stored, ref in found if ref is not None]
    if present:
        heads = pack_objects([stored for stored, _ in present])
        await heir.put.remote(heads, *[ref for _, ref in present])
    return len(present)
