"""Which stored KV object holds which blocks: the only directory of the KV stores' contents.

An object is of consecutive blocks of one chain and begins at a multiple of its length, so that its
last block's hash stands for all of it: one entry an object, one look for each possible end.
"""

from collections import Counter, OrderedDict
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from router.core.types import StoreId

Hashes = NDArray[np.uint64]


class StoredPiece(NamedTuple):
    """`blocks` blocks of a prompt from `first_block` on, in one object of each of these stores.

    The keys are the stores' own and opaque here.
    """

    first_block: int
    blocks: int
    keys: Mapping[StoreId, bytes]


class _Entry(NamedTuple):
    blocks: int
    keys: dict[StoreId, bytes]


class StoreDirectory:
    """Objects of at most `max_blocks` blocks together; the least recently added leave first."""

    def __init__(self, max_blocks: int) -> None:
        self.evicted = 0
        self._max_blocks = max_blocks
        self._blocks = 0
        self._entries: OrderedDict[int, _Entry] = OrderedDict()
        self._lengths: Counter[int] = Counter()

    def __len__(self) -> int:
        """Blocks."""
        return self._blocks

    def add(self, hashes: Hashes, store_id: StoreId, key: bytes) -> None:
        """A store has an object of these blocks. A later one that ends the same replaces it."""
        if not len(hashes):
            return
        last = hashes.item(-1)
        entry = self._entries.get(last)
        if entry is not None and entry.blocks != len(hashes):
            self._drop(last)
            entry = None
        if entry is None:
            entry = self._entries[last] = _Entry(len(hashes), {})
            self._blocks += entry.blocks
            self._lengths[entry.blocks] += 1
        entry.keys[store_id] = key
        self._entries.move_to_end(last)
        while self._blocks > self._max_blocks:
            self.evicted += self._drop(next(iter(self._entries)))

    def remove(self, hashes: Hashes, store_id: StoreId, key: bytes) -> None:
        """The object is gone from the store, unless another has taken its place there."""
        last = hashes.item(-1) if len(hashes) else None
        entry = self._entries.get(last) if last is not None else None
        if last is not None and entry is not None and entry.keys.get(store_id) == key:
            self._leave(last, entry, store_id)

    def forget(self, store_id: StoreId) -> int:
        """The store is gone; returns how many blocks it held. O(objects)."""
        gone = [(last, e) for last, e in self._entries.items() if store_id in e.keys]
        for last, entry in gone:
            self._leave(last, entry, store_id)
        return sum(entry.blocks for _, entry in gone)

    def find(self, hashes: Hashes) -> list[StoredPiece]:
        """The objects that hold any of a prompt's blocks, in the order of the chain, which may have
        gaps. O(blocks / length of an object)."""
        found = [
            StoredPiece(place * length, length, entry.keys)
            for length in self._lengths
            for place, last in enumerate(hashes[length - 1 :: length].tolist())
            if (entry := self._entries.get(last)) is not None and entry.blocks == length
        ]
        if len(self._lengths) > 1:
            found.sort(key=lambda piece: piece.first_block)
        return found

    def blocks_of(self, ends: Hashes) -> list[int]:
        """Blocks of the object that ends in each of these hashes; 0 where no store has one."""
        found = map(self._entries.get, ends.tolist())
        return [0 if entry is None else entry.blocks for entry in found]

    def _leave(self, last: int, entry: _Entry, store_id: StoreId) -> None:
        del entry.keys[store_id]
        if not entry.keys:
            self._drop(last)

    def _drop(self, last: int) -> int:
        """Returns how many blocks went."""
        blocks = self._entries.pop(last).blocks
        self._blocks -= blocks
        self._lengths[blocks] -= 1
        if not self._lengths[blocks]:
            del self._lengths[blocks]
        return blocks
