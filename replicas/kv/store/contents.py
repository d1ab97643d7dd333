"""What a store holds, and what of it anybody wants. Pure.

`Handle` is whatever the owner holds of an object's bytes in memory.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from replicas.kv.store.shelf import Shelf

Handle = TypeVar("Handle")


@dataclass(frozen=True, slots=True)
class StoredObject:
    """`hashes`: the router's, packed, of the `blocks` blocks inside. `is_for_reuse`: it stays even
    where no context claims it."""

    key: bytes
    hashes: bytes
    blocks: int
    size_bytes: int
    is_for_reuse: bool


class StoreContents(Generic[Handle]):
    """At most `budget_bytes` and `max_objects`."""

    def __init__(self, budget_bytes: int, max_objects: int) -> None:
        self._shelf = Shelf(budget_bytes)
        self._max_objects = max_objects
        self._objects: dict[bytes, StoredObject] = {}
        self._handles: dict[bytes, Handle] = {}

    def __len__(self) -> int:
        return len(self._objects)

    @property
    def used_bytes(self) -> int:
        return self._shelf.used_bytes

    def offer(self, stored: StoredObject) -> bool:
        """Whether it is wanted. One that is here counts as used, and stays for reuse once asked."""
        present = self._objects.get(stored.key)
        if present is None:
            return True
        self._shelf.touch(stored.key)
        if stored.is_for_reuse and not present.is_for_reuse:
            self._objects[stored.key] = stored
        return False

    def put(self, stored: StoredObject, handle: Handle) -> None:
        """One that is here already is kept as it is."""
        if not self.offer(stored):
            return
        self._objects[stored.key], self._handles[stored.key] = stored, handle
        for key in self._shelf.put(stored.key, stored.size_bytes):
            self._drop(key)
        while len(self._objects) > self._max_objects:
            self.discard([next(iter(self._shelf))])

    def find(self, key: bytes) -> Handle | None:
        """A use of the object."""
        return self._handles[key] if self._shelf.touch(key) else None

    def discard(self, keys: Iterable[bytes]) -> None:
        for key in keys:
            if self._shelf.remove(key):
                self._drop(key)

    def claim(self, keys: Iterable[bytes]) -> None:
        self._shelf.claim(keys)

    def release(self, keys: Iterable[bytes]) -> None:
        """What was only there for those claims goes at once."""
        unclaimed = self._shelf.release(keys)
        self.discard([key for key in unclaimed if not self._objects[key].is_for_reuse])

    def objects(self) -> list[StoredObject]:
        """Those that leave first come first. O(objects)."""
        return [self._objects[key] for key in self._shelf]

    def _drop(self, key: bytes) -> None:
        del self._handles[key]
        del self._objects[key]
