"""Which stored KV object holds a block: the only directory of the KV stores' contents."""

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

from router.core.types import StoreId


@dataclass(frozen=True, slots=True)
class StoreLocation:
    """An object in a store; `key` is the store's own and opaque here."""

    store_id: StoreId
    key: bytes


class StoreDirectory:
    """At most `max_blocks` blocks, each in at most one object per store. LRU by last addition."""

    def __init__(self, max_blocks: int) -> None:
        self.evicted = 0
        self._max_blocks = max_blocks
        self._entries: OrderedDict[int, dict[StoreId, StoreLocation]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, hashes: Iterable[int], location: StoreLocation) -> None:
        """These blocks lie in that object. A later object of the same store replaces an earlier."""
        for block_hash in hashes:
            self._entries.setdefault(block_hash, {})[location.store_id] = location
            self._entries.move_to_end(block_hash)
        while len(self._entries) > self._max_blocks:
            self._entries.popitem(last=False)
            self.evicted += 1

    def remove(self, hashes: Iterable[int], location: StoreLocation) -> None:
        """The object is gone. Blocks that lie in another object by now stay."""
        for block_hash in hashes:
            held = self._entries.get(block_hash)
            if held is not None and held.get(location.store_id) == location:
                self._discard(block_hash, held, location.store_id)

    def forget(self, store_id: StoreId) -> int:
        """The store is gone; returns how many blocks it held. O(blocks)."""
        gone = [(h, held) for h, held in self._entries.items() if store_id in held]
        for block_hash, held in gone:
            self._discard(block_hash, held, store_id)
        return len(gone)

    def find(self, hashes: Iterable[int]) -> list[tuple[StoreLocation, ...]]:
        """Per block the objects that hold it. Stops at the first block that no store holds."""
        found: list[tuple[StoreLocation, ...]] = []
        if not self._entries:
            return found
        for block_hash in hashes:
            held = self._entries.get(block_hash)
            if held is None:
                break
            found.append(tuple(held.values()))
        return found

    def _discard(
        self, block_hash: int, held: dict[StoreId, StoreLocation], store_id: StoreId
    ) -> None:
        del held[store_id]
        if not held:
            del self._entries[block_hash]
