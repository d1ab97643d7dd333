"""The directory of stored KV inside the actor: stores say what lies where, and when they go. Pure.

A store that gets a receipt of another incarnation than before reports everything again.
"""

from collections.abc import Sequence

from router.core.index import BlockIndex
from router.core.types import Incarnation, StoreId
from router.serve.wire import (
    HASH_BYTES,
    MAX_BATCH_BLOCKS,
    Receipt,
    StoredObject,
    StoreNews,
    Verdict,
    unpack_u64,
)


class StoreDesk:
    """Enters what stores report into the index of one actor life, `incarnation`."""

    def __init__(self, index: BlockIndex, incarnation: Incarnation) -> None:
        self._index = index
        self._incarnation = incarnation

    def report(self, news: StoreNews) -> Receipt:
        """Objects that came into a store and objects that left it, in this order. Idempotent.

        Raises `ValueError` where hashes are no whole u64s. O(blocks).
        """
        if _blocks(news.added) + _blocks(news.removed) > MAX_BATCH_BLOCKS:
            return Receipt(self._incarnation, Verdict.TOO_LARGE)
        store_id = StoreId(news.store_id)
        for stored in news.added:
            self._index.add_stored(unpack_u64(stored.hashes), store_id, stored.key)
        for stored in news.removed:
            self._index.remove_stored(unpack_u64(stored.hashes), store_id, stored.key)
        return Receipt(self._incarnation, Verdict.ACCEPTED)

    def forget(self, store_id: StoreId) -> Receipt:
        """The store is gone with all its objects. Idempotent. O(stored blocks)."""
        self._index.forget_store(store_id)
        return Receipt(self._incarnation, Verdict.ACCEPTED)


def _blocks(objects: Sequence[StoredObject]) -> int:
    return sum(len(stored.hashes) for stored in objects) // HASH_BYTES
