"""vLLM's KV events as they come off the wire, typed; msgpack only, nothing is ever unpickled.

Both forms in the field are read: maps with a `type`, and positional arrays that start with it.
Unknown fields are skipped, absent ones have defaults; an event of an unknown type or shape is
counted and costs only itself.
"""

from dataclasses import dataclass
from typing import Any, Final

import msgspec

from router.core.errors import MalformedMessage
from router.core.types import EngineBlockHash

WireHash = int | bytes
WireKey = Any
"""A string, bytes or an (id, offset) array; the wire does not say which it should be."""

_U64: Final = (1 << 64) - 1
_ARRAY_MARKS = frozenset([*range(0x90, 0xA0), 0xDC, 0xDD])


class BlockStored(msgspec.Struct, frozen=True, gc=False):
    """Blocks became reusable; `token_ids` are of all of them in order.

    `parent_block_hash` is the block before the first, none at the root. `extra_keys` has one entry
    a block, whose items carry no type. No `medium` means GPU. Without `token_ids` the blocks are
    ones that the engine announced before.
    """

    block_hashes: tuple[WireHash, ...]
    parent_block_hash: WireHash | None = None
    token_ids: tuple[int, ...] = ()
    block_size: int = 0
    lora_id: int | None = None
    medium: str | None = None
    lora_name: str | None = None
    extra_keys: tuple[tuple[WireKey, ...] | None, ...] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None
    locality: str | None = None


class BlockRemoved(msgspec.Struct, frozen=True, gc=False):
    """One copy of each block is no longer reusable."""

    block_hashes: tuple[WireHash, ...]
    medium: str | None = None
    group_idx: int | None = None
    locality: str | None = None


class AllBlocksCleared(msgspec.Struct, frozen=True):
    """The engine dropped its own cache. It names no medium and says nothing of other tiers."""


class _StoredMap(BlockStored, frozen=True, tag="BlockStored"):
    pass


class _RemovedMap(BlockRemoved, frozen=True, tag="BlockRemoved"):
    pass


class _ClearedMap(AllBlocksCleared, frozen=True, tag="AllBlocksCleared"):
    pass


class _StoredArray(BlockStored, frozen=True, tag="BlockStored", array_like=True):
    pass


class _RemovedArray(BlockRemoved, frozen=True, tag="BlockRemoved", array_like=True):
    pass


class _ClearedArray(AllBlocksCleared, frozen=True, tag="AllBlocksCleared", array_like=True):
    pass


class _Batch(msgspec.Struct, array_like=True):
    ts: float
    events: list[msgspec.Raw]
    data_parallel_rank: int | None = None


KVEvent = BlockStored | BlockRemoved | AllBlocksCleared

_BATCH = msgspec.msgpack.Decoder(_Batch)
_MAP = msgspec.msgpack.Decoder(_StoredMap | _RemovedMap | _ClearedMap)
_ARRAY = msgspec.msgpack.Decoder(_StoredArray | _RemovedArray | _ClearedArray)


@dataclass(frozen=True, slots=True)
class EngineBatch:
    """What one step of the engine changed; `skipped` events could not be read.

    `at_s` is when the engine published it, in seconds since the epoch on its machine's clock.
    """

    at_s: float
    events: tuple[KVEvent, ...]
    data_parallel_rank: int
    skipped: int


def decode_engine_batch(payload: bytes) -> EngineBatch:
    """Raises `MalformedMessage` where the payload as a whole is no batch."""
    try:
        batch = _BATCH.decode(payload)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise MalformedMessage(f"not a KV event batch: {error}") from error
    events = [event for raw in batch.events if (event := _decoded(raw)) is not None]
    rank = batch.data_parallel_rank or 0
    return EngineBatch(batch.ts, tuple(events), rank, len(batch.events) - len(events))


def engine_hash(value: WireHash) -> EngineBlockHash:
    """Integers, signed or not, become 8 big-endian bytes; bytes stay as they are."""
    if isinstance(value, bytes):
        return EngineBlockHash(value)
    return EngineBlockHash((value & _U64).to_bytes(8, "big"))


def _decoded(raw: msgspec.Raw) -> KVEvent | None:
    data = bytes(raw)
    decoder = _ARRAY if data[0] in _ARRAY_MARKS else _MAP
    try:
        event: KVEvent = decoder.decode(data)
        return event
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
