"""Chained hashes of full blocks of token ids.

A block's hash names the whole prefix that ends with it, so equal hashes mean equal prefixes. Both
sides of the router, the ingress on prompts and the replica on its engine's events, call this module
and nothing else.

    root     = xxh3_64("warmpath/1" | u32 block_size | chain keys)
    hash[i]  = xxh3_64(u64 parent | block_size x u32 token id | keys of block i)

All integers are little-endian; a key is `u8 kind | u32 length | payload`, in the order of its kind
and payload. A digest of 0 is written as 1, so that 0 can mean "no parent".
"""

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest

from router.core.types import BlockHash

_DOMAIN = b"warmpath/1"
_WIRE = np.dtype("<u8")
_ADAPTER, _SALT, _IMAGE, _EMBEDDINGS, _OPAQUE = range(1, 6)
_NO_KEYS: Mapping[int, tuple[bytes, ...]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class ExtraKeys:
    """What else than token ids changes the KV of a prompt.

    `chain` enters before the first block, `blocks` at the block with that index. Build it with the
    functions below and join the parts with `|`; the order of joining does not matter.
    """

    chain: tuple[bytes, ...] = ()
    blocks: Mapping[int, tuple[bytes, ...]] = field(default_factory=dict)

    def __or__(self, other: "ExtraKeys") -> "ExtraKeys":
        blocks = dict(self.blocks)
        for index, keys in other.blocks.items():
            blocks[index] = blocks.get(index, ()) + keys
        return ExtraKeys(self.chain + other.chain, blocks)


NO_EXTRA_KEYS = ExtraKeys()


def adapter(name: str, version: str) -> ExtraKeys:
    """A LoRA adapter; another version under the same name is another adapter."""
    return ExtraKeys((_key(_ADAPTER, name.encode(), version.encode()),))


def salt(cache_salt: str) -> ExtraKeys:
    """The tenant's cache salt as the engine gets it."""
    return ExtraKeys((_key(_SALT, cache_salt.encode()),))


def image(identifier: str, offset: int, length: int, block_size: int) -> ExtraKeys:
    """A multimodal item whose placeholder covers `length` tokens from token `offset` on.

    Enters each block that it touches together with its place relative to that block.
    """
    first, last = offset // block_size, (offset + length - 1) // block_size
    return ExtraKeys(
        blocks={
            index: image_in_block(identifier, offset - index * block_size)
            for index in range(first, last + 1)
        }
    )


def image_in_block(identifier: str, relative_offset: int) -> tuple[bytes, ...]:
    """The key of one block; `relative_offset` is negative where the item began before the block."""
    return (_key(_IMAGE, identifier.encode(), struct.pack("<q", relative_offset)),)


def embeddings(index: int, digest: bytes) -> ExtraKeys:
    """Prompt embeddings in place of token ids in the block `index`, by their digest."""
    return ExtraKeys(blocks={index: embeddings_in_block(digest)})


def embeddings_in_block(digest: bytes) -> tuple[bytes, ...]:
    return (_key(_EMBEDDINGS, digest),)


def opaque_in_block(value: bytes) -> tuple[bytes, ...]:
    """A key whose meaning is not known: it keeps the block apart from all others."""
    return (_key(_OPAQUE, value),)


def chain_root(block_size: int, chain: Sequence[bytes] = ()) -> BlockHash:
    """The parent of every first block of a chain with these keys."""
    header = _DOMAIN + struct.pack("<I", block_size)
    return BlockHash(xxh3_64_intdigest(header + b"".join(sorted(chain))) or 1)


def extend_chain(
    parent: int,
    token_ids: bytes | memoryview,
    block_size: int,
    block_keys: Mapping[int, tuple[bytes, ...]] = _NO_KEYS,
) -> list[int]:
    """The hashes of the full blocks in `token_ids` (packed little-endian u32) after `parent`.

    `block_keys` is indexed from the first of these blocks. A partial last block is left out.
    O(len(token_ids)).
    """
    width = block_size * 4
    data = bytes(token_ids)
    pack = struct.Struct("<Q").pack
    hashes = []
    for index, start in enumerate(range(0, len(data) - width + 1, width)):
        message = pack(parent) + data[start : start + width]
        if index in block_keys:
            message += b"".join(sorted(block_keys[index]))
        parent = xxh3_64_intdigest(message) or 1
        hashes.append(parent)
    return hashes


def hash_blocks(
    token_ids: bytes | memoryview, block_size: int, extra_keys: ExtraKeys = NO_EXTRA_KEYS
) -> NDArray[np.uint64]:
    """The hashes of all full blocks of a prompt, shape [len(token_ids) // 4 // block_size].

    `token_ids` are packed little-endian u32. O(len(token_ids)).
    """
    root = chain_root(block_size, extra_keys.chain)
    return np.array(extend_chain(root, token_ids, block_size, extra_keys.blocks), np.uint64)


def pack_hashes(hashes: NDArray[np.uint64]) -> bytes:
    """Little-endian u64, as hashes travel between processes."""
    return hashes.astype("<u8", copy=False).tobytes()


def unpack_hashes(data: bytes | memoryview) -> NDArray[np.uint64]:
    """The inverse of `pack_hashes`, without a copy."""
    return np.frombuffer(data, _WIRE).astype(np.uint64, copy=False)


def _key(kind: int, *payload: bytes) -> bytes:
    body = b"".join(struct.pack("<I", len(part)) + part for part in payload)
    return struct.pack("<BI", kind, len(body)) + body
