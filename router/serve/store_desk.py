"""The directory of stored KV inside the actor: stores say what lies where, and when they go. Pure.

A store that gets a receipt of another incarnation than before, or is asked for it, reports all that
it has. One that is silent for too long is forgotten.
"""

from collections.abc import Sequence

import numpy as np

from router.core.index import BlockIndex
from router.core.types import Incarnation, StoreId
from router.serve.store_wire import StoredObject, StoredSizes, StoreNews
from router.serve.wire import HASH_BYTES, MAX_BATCH_BLOCKS, Receipt, Verdict, unpack_u64


class StoreDesk:
    """Enters what stores report into the index of one actor life, `incarnation`."""

    def __init__(self, index: BlockIndex, incarnation: Incarnation, forget_after_s: float) -> None:
        self._index = index
        self._incarnation = incarnation
        self._forget_after_s = forget_after_s
        self._heard_at: dict[StoreId, float] = {}
        self._block_bytes = 0

    def __len__(self) -> int:
        return len(self._heard_at)

    def report(self, news: StoreNews, now: float) -> Receipt:
        """Objects that came into a store and objects that left it, in this order. Idempotent.

        Raises `ValueError` where hashes are no whole u64s. O(blocks), and O(stored blocks) where
        a known store begins anew.
        """
        if _blocks(news.added) + _blocks(news.removed) > MAX_BATCH_BLOCKS:
            return self._receipt(Verdict.TOO_LARGE)
        store_id = StoreId(news.store_id)
        is_known = store_id in self._heard_at
        if not is_known and not news.begins:
            return self._receipt(Verdict.WANTS_SNAPSHOT)
        if is_known and news.begins:
            self._index.forget_store(store_id)
        self._heard_at[store_id] = now
        for stored in news.added:
            self._index.add_stored(unpack_u64(stored.hashes), store_id, stored.key)
            self._block_bytes = stored.size_bytes * HASH_BYTES // max(len(stored.hashes), 1)
        for stored in news.removed:
            self._index.remove_stored(unpack_u64(stored.hashes), store_id, stored.key)
        return self._receipt(Verdict.ACCEPTED)

    def forget(self, store_id: StoreId) -> Receipt:
        """The store is gone with all its objects. Idempotent. O(stored blocks)."""
        self._heard_at.pop(store_id, None)
        self._index.forget_store(store_id)
        return self._receipt(Verdict.ACCEPTED)

    def sizes(self, ends: bytes) -> StoredSizes:
        """What is stored under these packed hashes of objects' last blocks. O(ends)."""
        blocks = self._index.stored_blocks(unpack_u64(ends))
        return StoredSizes(np.array(blocks, "<u4").tobytes(), self._block_bytes)

    def sweep(self, now: float) -> None:
        """Forgets stores that have been silent for too long. O(stores)."""
        limit = now - self._forget_after_s
        for store_id in [s for s, heard_at in self._heard_at.items() if heard_at <= limit]:
            self.forget(store_id)

    def _receipt(self, verdict: Verdict) -> Receipt:
        return Receipt(self._incarnation, verdict)


def _blocks(objects: Sequence[StoredObject]) -> int:
    return sum(len(stored.hashes) for stored in objects) // HASH_BYTES
