"""A KV object as bytes: consecutive blocks of one chain behind a header that proves what they are.

    offset  bytes
    0       4       "WPKV"
    4       2       version
    6       2       blocks
    8       8       payload bytes
    16      32      namespace digest
    48      32      engine hash of the last block, which stands for the whole prefix
    80      32      form: how the engine that wrote it lays out a block, and which rank's part it is
    112     16      xxh3_128 of the 112 bytes before and the payload
    128     -       payload: the layers in order, each with its part of the blocks in order

Integers are little-endian. The payload starts aligned, to be copied from where it lies.
"""

import struct
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_128

from router.core.errors import WarmpathError

Bytes = NDArray[np.uint8]

HEADER_BYTES = 128
KEY_BYTES = 64
_DIGEST_BYTES = 32
_MAGIC = b"WPKV"
_VERSION = 3
_FIELDS = struct.Struct("<4sHHQ32s32s32s")
FORMLESS = bytes(_DIGEST_BYTES)
"""The form of bytes that no engine's worker wrote."""


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

    def of_rank(self, rank: int) -> "ObjectKey":
        """What one of an engine's ranks calls its part of these blocks; the same call leads back.
        The first rank's part has the key itself, which stands for all."""
        if not rank:
            return self
        mask = blake2b(f"rank {rank}".encode(), digest_size=_DIGEST_BYTES).digest()
        return ObjectKey(
            bytes(a ^ b for a, b in zip(self.namespace, mask, strict=True)), self.last_hash
        )


def new_object(blocks: int, block_bytes: int) -> Bytes:
    """An object to be filled through `payload` and then sealed."""
    return np.empty(object_bytes(blocks, block_bytes), np.uint8)


def object_bytes(blocks: int, block_bytes: int) -> int:
    """The length of an object with its header."""
    return HEADER_BYTES + blocks * block_bytes


def payload(data: Bytes) -> Bytes:
    """All behind the header; no copy."""
    return data[HEADER_BYTES:]


def seal(data: Bytes, key: ObjectKey, blocks: int, form: bytes = FORMLESS) -> None:
    """Writes the header over a filled object. O(bytes)."""
    fields = _fields(key, blocks, len(payload(data)), form)
    checksum = xxh3_128(fields)
    checksum.update(payload(data).data)
    data[:HEADER_BYTES] = np.frombuffer(fields + checksum.digest(), np.uint8)


def form_of(data: Bytes) -> bytes:
    """What the header says, right or wrong."""
    form: bytes = _FIELDS.unpack(data[: _FIELDS.size].tobytes())[-1]
    return form


class Proof:
    """That an object is what was asked for, while its payload is read part by part, from its start
    to its end: what a part was used for is worth nothing until `conclude` has returned.

    Raises `UnusableObject` where it is of other blocks, another form or another length.
    """

    def __init__(
        self,
        data: Bytes,
        key: ObjectKey,
        blocks: int,
        block_bytes: int,
        form: bytes = FORMLESS,
    ) -> None:
        if len(data) != object_bytes(blocks, block_bytes):
            raise UnusableObject("a stored object has the wrong length")
        self._expected = _fields(key, blocks, blocks * block_bytes, form)
        self._header = data[:HEADER_BYTES].tobytes()
        if not self._header.startswith(self._expected):
            raise UnusableObject("a stored object is of other blocks or another engine's")
        self._checksum = xxh3_128(self._expected)

    def read(self, part: Bytes) -> None:
        """The next part of the payload. O(bytes)."""
        self._checksum.update(part.data)

    def conclude(self) -> None:
        """Raises `UnusableObject` unless every byte is right."""
        if self._header != self._expected + self._checksum.digest():
            raise UnusableObject("a stored object is damaged")


def opened(
    data: Bytes, key: ObjectKey, blocks: int, block_bytes: int, form: bytes = FORMLESS
) -> Bytes:
    """The payload of an object, proven to be the blocks of `key`. O(bytes).

    Raises `UnusableObject`.
    """
    proof = Proof(data, key, blocks, block_bytes, form)
    proof.read(payload(data))
    proof.conclude()
    return payload(data)


def prove(data: Bytes, key: bytes) -> None:
    """That this is an undamaged object of `key`, of whatever size and form. O(bytes).

    Raises `UnusableObject`.
    """
    if len(data) < HEADER_BYTES:
        raise UnusableObject("a stored object has no header")
    blocks = _FIELDS.unpack(data[: _FIELDS.size].tobytes())[2]
    body_bytes = len(data) - HEADER_BYTES
    if not blocks or body_bytes % blocks:
        raise UnusableObject("a stored object has the wrong length")
    opened(data, ObjectKey.unpack(key), blocks, body_bytes // blocks, form_of(data))


def _fields(key: ObjectKey, blocks: int, payload_bytes: int, form: bytes) -> bytes:
    return _FIELDS.pack(_MAGIC, _VERSION, blocks, payload_bytes, key.namespace, key.last_hash, form)
