"""Short ways to write an engine's events: one block per letter, engine hashes by prefix."""

import zlib
from collections.abc import Sequence

from replicas.kv.events import AllBlocksCleared, BlockRemoved, BlockStored, WireKey

BLOCK_SIZE = 2


def engine_hash_of(prefix: str) -> int:
    """An opaque engine hash; equal for equal prefixes."""
    return zlib.crc32(prefix.encode()) << 8 | len(prefix)


def tokens(text: str) -> list[int]:
    return [ord(letter) + place for letter in text for place in range(BLOCK_SIZE)]


def stored(
    text: str,
    *,
    after: str = "",
    medium: str | None = "GPU",
    lora: str | None = None,
    keys: Sequence[tuple[WireKey, ...] | None] | None = None,
    group: int | None = None,
    kind: str | None = None,
    names: str = "",
) -> BlockStored:
    """The blocks of `text` in the chain that starts with `after`; `names` sets hashes apart."""
    ends = range(len(after) + 1, len(after) + len(text) + 1)
    whole = after + text
    return BlockStored(
        block_hashes=tuple(engine_hash_of(names + whole[:end]) for end in ends),
        parent_block_hash=engine_hash_of(names + after) if after else None,
        token_ids=tuple(tokens(text)),
        block_size=BLOCK_SIZE,
        medium=medium,
        lora_name=lora,
        extra_keys=None if keys is None else tuple(keys),
        group_idx=group,
        kv_cache_spec_kind=kind,
    )


def removed(
    text: str, *, after: str = "", medium: str | None = "GPU", group: int | None = None
) -> list[BlockRemoved]:
    """One event per block, the last one first, as vLLM evicts."""
    ends = range(len(after) + len(text), len(after), -1)
    whole = after + text
    return [BlockRemoved((engine_hash_of(whole[:end]),), medium, group) for end in ends]


CLEARED = AllBlocksCleared()
