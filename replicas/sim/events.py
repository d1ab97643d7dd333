"""KV events as vLLM 0.32 puts them on the wire: maps in an array, packed with msgpack.

Encoding only; sockets are the publisher's.
"""

from collections.abc import Iterable, Iterator

import msgspec

from replicas.sim.pool import Change, ClearedBlocks, RemovedBlocks, StoredBlocks
from replicas.sim.sequence import TextSequence

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


def events_of(changes: Iterable[Change], block_size: int) -> tuple[KVEvent, ...]:
    """The events of a pool that reports each copy, of sequences that have their tokens."""
    return tuple(event for change in changes for event in _events_of(change, block_size))


def _events_of(change: Change, block_size: int) -> Iterator[KVEvent]:
    match change:
        case StoredBlocks():
            yield _stored(change, block_size)
        case RemovedBlocks():
            for digest in change.hashes:
                yield BlockRemoved(block_hashes=(digest,), medium=MEDIUM, group_idx=0)
        case ClearedBlocks():
            yield AllBlocksCleared()


def _stored(change: StoredBlocks, block_size: int) -> BlockStored:
    """A salt is named at the root block only."""
    sequence = change.sequence
    assert isinstance(sequence, TextSequence)
    is_salted_root = change.start == 0 and sequence.cache_salt is not None
    root = (sequence.cache_salt or "",) if is_salted_root else None
    tokens = sequence.tokens[change.start * block_size : change.end * block_size]
    return BlockStored(
        block_hashes=tuple(change.hashes),
        parent_block_hash=change.parent,
        token_ids=tuple(tokens),
        block_size=block_size,
        lora_id=None,
        medium=MEDIUM,
        lora_name=None,
        extra_keys=(root, *(None,) * (change.end - change.start - 1)),
        group_idx=0,
    )
