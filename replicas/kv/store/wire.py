"""What travels between a KV store and those who use it, besides the bytes of the objects."""

from collections.abc import Sequence

import msgspec

from replicas.kv.store.contents import StoredObject
from replicas.kv.store.origins import Origin, WarmPrefix


def pack_objects(objects: Sequence[StoredObject]) -> bytes:
    return _ENCODER.encode(list(objects))


def unpack_objects(data: bytes) -> list[StoredObject]:
    """Raises `msgspec.MsgspecError` on anything else."""
    return _DECODER.decode(data)


def pack_object(stored: StoredObject) -> bytes:
    return _ENCODER.encode(stored)


def unpack_object(data: bytes) -> StoredObject:
    """Raises `msgspec.MsgspecError` on anything else."""
    return _OBJECT_DECODER.decode(data)


def pack_origins(origins: Sequence[Origin | None]) -> bytes:
    return _ENCODER.encode(list(origins))


def unpack_origins(data: bytes) -> list[Origin | None]:
    """Raises `msgspec.MsgspecError` on anything else."""
    return _ORIGINS_DECODER.decode(data)


def pack_prefixes(prefixes: Sequence[WarmPrefix]) -> bytes:
    return _ENCODER.encode(list(prefixes))


def unpack_prefixes(data: bytes) -> list[WarmPrefix]:
    """Raises `msgspec.MsgspecError` on anything else."""
    return _PREFIXES_DECODER.decode(data)


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(list[StoredObject])
_OBJECT_DECODER = msgspec.msgpack.Decoder(StoredObject)
_ORIGINS_DECODER = msgspec.msgpack.Decoder(list[Origin | None])
_PREFIXES_DECODER = msgspec.msgpack.Decoder(list[WarmPrefix])
