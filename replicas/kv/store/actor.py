"""One node's KV store as a Ray actor: owner of the objects, so that they outlive who made them."""

from typing import Any

import ray

from replicas.kv.store.contents import StoreContents
from replicas.kv.store.wire import pack_objects, unpack_objects

MAX_OBJECTS = 262_144


class KVStoreActor:
    """`budget_bytes` of the node's object store. What is past it leaves; nothing is spilled.

    Its methods are synchronous and short: one call at a time, in the order of arrival.
    """

    def __init__(self, budget_bytes: int) -> None:
        self._contents: StoreContents[ray.ObjectRef] = StoreContents(budget_bytes, MAX_OBJECTS)

    def offer(self, heads: bytes) -> list[bool]:
        """Which of these objects are wanted; those that are here count as used."""
        return [self._contents.offer(stored) for stored in unpack_objects(heads)]

    def put(self, heads: bytes, *objects: Any) -> None:
        """Takes objects in, in the order of their heads. One whose size is not what its head says
        is left out."""
        for stored, data in zip(unpack_objects(heads), objects, strict=True):
            if data.nbytes == stored.size_bytes and self._contents.offer(stored):
                self._contents.put(stored, ray.put(data))

    def locate(self, keys: list[bytes]) -> list[list[ray.ObjectRef]]:
        """A reference in a list for each object that is here, an empty list for the others."""
        found = [self._contents.find(key) for key in keys]
        return [[] if ref is None else [ref] for ref in found]

    def discard(self, keys: list[bytes]) -> None:
        self._contents.discard(keys)

    def claim(self, keys: list[bytes]) -> None:
        self._contents.claim(keys)

    def release(self, keys: list[bytes]) -> None:
        self._contents.release(keys)

    def listing(self) -> bytes:
        """All that is here, for a directory to be rebuilt from; see `unpack_objects`."""
        return pack_objects(self._contents.objects())

    def stats(self) -> dict[str, int]:
        return {"objects": len(self._contents), "bytes": self._contents.used_bytes}
