"""KV events as vLLM 0.32 puts them on the wire: maps in an array, packed with msgpack.

Encoding only; sockets are the publisher's.
"""

import msgspec

MEDIUM = "GPU"


class KVEvent(msgspec.Struct, frozen=True, tag=True):
    """Base of the three events; `type` on the wire is the class's name."""


class BlockStored(KVEvent, frozen=True):
    """Blocks became reusable. `token_ids` are of all of them, in order.

    `parent_block_hash` is the block before the first, `None` at the root. `extra_keys` has one
    entry a block: the cache salt for a salted root block, else `None`.
    """

    block_hashes: tuple[int, ...]
    parent_block_hash: int | None
    token_ids: tuple[int, ...]
    block_size: int
    lora_id: int | None
    medium: str
    lora_name: str | None
    extra_keys: tuple[tuple[str, ...] | None, ...]
    group_idx: int


class BlockRemoved(KVEvent, frozen=True):
    """One copy of each block was evicted; others of the same hash may remain."""

    block_hashes: tuple[int, ...]
    medium: str
    group_idx: int


class AllBlocksCleared(KVEvent, frozen=True):
    """The whole cache was dropped."""


class KVEventBatch(msgspec.Struct, frozen=True, array_like=True):
    """What one pass changed. `ts` is in seconds since the epoch."""

    ts: float
    events: tuple[BlockStored | BlockRemoved | AllBlocksCleared, ...]
    data_parallel_rank: int = 0


def encode_batch(events: tuple[KVEvent, ...], ts: float) -> bytes:
    """One batch as msgpack. O(tokens in the events)."""
    return msgspec.msgpack.encode((ts, events, 0))
