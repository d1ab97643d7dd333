"""A KV object as bytes: consecutive blocks of one chain behind a header that proves what they are.

    offset  bytes
    0       4       "WPKV"
    4       2       version
    6       2       blocks
    8       8       payload bytes
    16      32      namespace digest
    48      32      engine hash of the last block, which stands for the whole prefix
    80      16      xxh3_128 of the 80 bytes before and the payload
    96      32      zero
    128     -       payload: the blocks in order, each with its layers in order

Integers are little-endian. The payload starts aligned, to be copied from where it lies.
"""

import struct
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_128

from router.core.errors import WarmpathError

Bytes = NDArray[np.uint8]

HEADER_BYTES = 128
KEY_BYTES = 64
_DIGEST_BYTES = 32
_MAGIC = b"WPKV"
_VERSION = 1
_FIELDS = struct.Struct("<4sHHQ32s32s")


class UnusableObject(WarmpathError):
    """An object that is not what was asked for: damaged, cut short, of other blocks or engines."""


@dataclass(frozen=True, slots=True)
class ObjectKey:
    """The blocks up to and with the one of `last_hash` (the engine's 32 bytes), in a namespace."""

    namespace: bytes
    last_hash: bytes

    def pack(self) -> bytes:
        return self.namespace + self.last_hash

    @classmethod
    def unpack(cls, data: bytes) -> "ObjectKey":
        """Raises `UnusableObject` on what is no key."""
        if len(data) != KEY_BYTES:
            raise UnusableObject("a key of a stored object has the wrong length")
        return cls(data[:_DIGEST_BYTES], data[_DIGEST_BYTES:])


def new_object(blocks: int, block_bytes: int) -> Bytes:
    """An object to be filled through `payload` and then sealed."""
    return np.empty(object_bytes(blocks, block_bytes), np.uint8)


def object_bytes(blocks: int, block_bytes: int) -> int:
    """The length of an object with its header."""
    return HEADER_BYTES + blocks * block_bytes


def payload(data: Bytes, blocks: int) -> Bytes:
    """The blocks [blocks, block bytes]; no copy."""
    return data[HEADER_BYTES:].reshape(blocks, -1)


def seal(data: Bytes, key: ObjectKey, blocks: int) -> None:
    """Writes the header over a filled object. O(bytes)."""
    body = data[HEADER_BYTES:]
    fields = _FIELDS.pack(_MAGIC, _VERSION, blocks, len(body), key.namespace, key.last_hash)
    header = fields + _checksum(fields, body)
    data[:HEADER_BYTES] = 0
    data[: len(header)] = np.frombuffer(header, np.uint8)


def opened(data: Bytes, key: ObjectKey, blocks: int, block_bytes: int) -> Bytes:
    """The blocks [blocks, block bytes] of an object, proven to be those of `key`. O(bytes).

    Raises `UnusableObject`.
    """
    if len(data) != object_bytes(blocks, block_bytes):
        raise UnusableObject("a stored object has the wrong length")
    body = data[HEADER_BYTES:]
    expected = _FIELDS.pack(_MAGIC, _VERSION, blocks, len(body), key.namespace, key.last_hash)
    header = data[:HEADER_BYTES].tobytes()
    if not header.startswith(expected):
        raise UnusableObject("a stored object is of other blocks")
    if header != (expected + _checksum(expected, body)).ljust(HEADER_BYTES, b"\0"):
        raise UnusableObject("a stored object is damaged")
    return payload(data, blocks)


def prove(data: Bytes, key: bytes) -> None:
    """That this is an undamaged object of `key`, of whatever size. O(bytes).

    Raises `UnusableObject`.
    """
    if len(data) < HEADER_BYTES:
        raise UnusableObject("a stored object has no header")
    _, _, blocks, *_ = _FIELDS.unpack(data[: _FIELDS.size].tobytes())
    body_bytes = len(data) - HEADER_BYTES
    if not blocks or body_bytes % blocks:
        raise UnusableObject("a stored object has the wrong length")
    opened(data, ObjectKey.unpack(key), blocks, body_bytes // blocks)


def _checksum(fields: bytes, body: Bytes) -> bytes:
    checksum = xxh3_128(fields)
    checksum.update(body.data)
    return checksum.digest()
