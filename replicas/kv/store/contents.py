"""What a store holds in memory, and what of it leaves first. Pure.

`Handle` is whatever the owner holds of an object's bytes.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from replicas.kv.store.shelf import Shelf

Handle = TypeVar("Handle")


@dataclass(frozen=True, slots=True)
class StoredObject:
    """Blocks of the model that is served as `model`. `hashes`: the router's, packed, of the
    `blocks` blocks inside. `is_for_reuse`: it stays even where no context claims it. `rank`: whose
    part of the blocks it is; indexes are told of the first rank's, which stands for all."""

    key: bytes
    model: str
    hashes: bytes
    blocks: int
    size_bytes: int
    is_for_reuse: bool
    rank: int = 0


@dataclass(slots=True)
class Changes:
    """What came and what left, by key; an object that did both is in neither."""

    added: dict[bytes, StoredObject] = field(default_factory=dict)
    removed: dict[bytes, StoredObject] = field(default_factory=dict)

    def add(self, stored: StoredObject) -> None:
        if self.removed.pop(stored.key, None) is None:
            self.added[stored.key] = stored

    def remove(self, stored: StoredObject) -> None:
        if self.added.pop(stored.key, None) is None:
            self.removed[stored.key] = stored


@dataclass(frozen=True, slots=True)
class Held(Generic[Handle]):
    stored: StoredObject
    handle: Handle


class StoreContents(Generic[Handle]):
    """At most `budget_bytes` and `max_objects`. What was saved for a context counts as claimed
    until somebody knows better."""

    def __init__(self, budget_bytes: int, max_objects: int) -> None:
        self._shelf = Shelf(budget_bytes)
        self._max_objects = max_objects
        self._held: dict[bytes, Held[Handle]] = {}

    def __len__(self) -> int:
        return len(self._held)

    def __contains__(self, key: bytes) -> bool:
        return key in self._held

    @property
    def used_bytes(self) -> int:
        return self._shelf.used_bytes

    @property
    def room_bytes(self) -> int:
        """What may still come without anything leaving."""
        return self._shelf.budget_bytes - self._shelf.used_bytes

    def offer(self, stored: StoredObject) -> bool:
        """Whether it is wanted. One that is here counts as used, and stays for reuse once asked."""
        present = self._held.get(stored.key)
        if present is None:
            return True
        self._shelf.touch(stored.key)
        if stored.is_for_reuse and not present.stored.is_for_reuse:
            self._held[stored.key] = Held(stored, present.handle)
        return False

    def put(self, stored: StoredObject, handle: Handle) -> list[Held[Handle]]:
        """Takes it in, and returns what left for it: itself where there is no room.

        One that is here already is kept as it is.
        """
        if not self.offer(stored):
            return []
        self._held[stored.key] = Held(stored, handle)
        is_claimed = not stored.is_for_reuse
        gone = self._shelf.put(stored.key, stored.size_bytes, is_claimed=is_claimed)
        while len(self._shelf) > self._max_objects:
            gone.append(next(iter(self._shelf)))
            self._shelf.remove(gone[-1])
        return [self._held.pop(key) for key in gone]

    def get(self, key: bytes) -> StoredObject | None:
        """What is known of an object that is here; no use of it."""
        held = self._held.get(key)
        return None if held is None else held.stored

    def find(self, key: bytes) -> Handle | None:
        """A use of the object."""
        return self._held[key].handle if self._shelf.touch(key) else None

    def discard(self, keys: Iterable[bytes]) -> None:
        for key in keys:
            if self._shelf.remove(key):
                del self._held[key]

    def claim(self, keys: Iterable[bytes], *, is_claimed: bool) -> None:
        """Whether contexts claim these, from here on."""
        for key in keys:
            self._shelf.claim(key, is_claimed=is_claimed)

    def claimed(self) -> list[StoredObject]:
        """What contexts claim, the latest used first. O(objects)."""
        return [self._held[key].stored for key in reversed(list(self._shelf.claimed()))]

    def objects(self) -> list[StoredObject]:
        """Those that leave first come first. O(objects)."""
        return [self._held[key].stored for key in self._shelf]
