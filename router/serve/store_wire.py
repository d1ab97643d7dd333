"""What crosses between the block index and the KV stores, and who asks what they hold.

In the form of `wire`, and under its protocol.
"""

import msgspec

from router.serve.wire import Message


class StoredObject(Message, frozen=True):
    """One object of a KV store: its key there, the packed u64 hashes of its blocks, its bytes."""

    key: bytes
    hashes: bytes
    size_bytes: int = 0


class StoreNews(Message, frozen=True):
    """What came into a store and what left it; at most `MAX_BATCH_BLOCKS` blocks together.

    `begins`: nothing that was known of the store holds any more, all that it has follows. News
    without objects renew its lease.
    """

    store_id: str
    added: list[StoredObject]
    removed: list[StoredObject]
    begins: bool = False


class StoredSizes(Message, frozen=True):
    """For each of the object ends that were asked for the blocks stored there, packed u32; 0 where
    there is no such object."""

    blocks: bytes
    block_bytes: int


def decode_store_news(payload: bytes) -> StoreNews:
    return _STORE_NEWS.decode(payload)


def decode_stored_sizes(payload: bytes) -> StoredSizes:
    return _STORED_SIZES.decode(payload)


_STORE_NEWS = msgspec.msgpack.Decoder(StoreNews)
_STORED_SIZES = msgspec.msgpack.Decoder(StoredSizes)
