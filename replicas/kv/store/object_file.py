"""A stored object as a file that says by itself what it is.

    offset  bytes
    0       4       "WPKF"
    4       2       version
    6       2       zero
    8       4       length of the head
    12      8       xxh3_64 of the 12 bytes before and the head
    20      head    a `StoredObject` as MessagePack
    …       rest    the object

Integers are little-endian. The object proves itself, see `objects`. A file appears whole or not at
all under its name, whatever happens meanwhile.
"""

import os
import stat
import struct
from contextlib import suppress
from io import BufferedReader, FileIO
from pathlib import Path

import msgspec
import numpy as np
from xxhash import xxh3_64_digest

from replicas.kv.store.contents import StoredObject
from replicas.kv.store.objects import Bytes, UnusableObject, prove
from replicas.kv.store.wire import pack_object, unpack_object

SUFFIX, UNFINISHED = ".kv", ".part"
MAX_HEAD_BYTES = 1 << 20
_START = struct.Struct("<4sHHI")
_PREFIX_BYTES = _START.size + 8
_MAGIC, _VERSION = b"WPKF", 1
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def file_name(key: bytes) -> str:
    return key.hex() + SUFFIX


def write_file(folder: Path, stored: StoredObject, data: Bytes) -> None:
    """On disk when it returns, readable by its owner only. Raises `OSError`."""
    head = pack_object(stored)
    start = _START.pack(_MAGIC, _VERSION, 0, len(head))
    prefix = start + xxh3_64_digest(start + head)
    unfinished = folder / (stored.key.hex() + UNFINISHED)
    try:
        with os.fdopen(os.open(unfinished, _CREATE, 0o600), "wb", buffering=0) as file:
            _write_all(file, prefix + head)
            _write_all(file, data.data)
            os.fsync(file.fileno())
        unfinished.rename(folder / file_name(stored.key))
    except BaseException:
        with suppress(OSError):
            unfinished.unlink()
        raise


def read_head(path: Path) -> StoredObject:
    """What a file says of itself; its object is not looked at.

    Raises `OSError`, and `UnusableObject` on what is no whole file of ours.
    """
    with _opened(path) as file:
        return _head(file, path)


def read_file(path: Path) -> Bytes:
    """The object of a file, proven. Raises `OSError` and `UnusableObject`."""
    with _opened(path) as file:
        stored = _head(file, path)
        data = np.empty(stored.size_bytes, np.uint8)
        if file.readinto(data.data) != stored.size_bytes:
            raise UnusableObject("a stored file was cut short")
    prove(data, stored.key)
    return data


def _opened(path: Path) -> BufferedReader:
    """Raises `UnusableObject` where others may have written it: links, pipes, foreign files."""
    descriptor = os.open(path, _READ)
    state = os.fstat(descriptor)
    is_own = state.st_uid == os.geteuid() and not state.st_mode & 0o077
    if not (stat.S_ISREG(state.st_mode) and is_own):
        os.close(descriptor)
        raise UnusableObject("a stored file is not of this store")
    return os.fdopen(descriptor, "rb")


def _head(file: BufferedReader, path: Path) -> StoredObject:
    prefix = file.read(_PREFIX_BYTES)
    if len(prefix) != _PREFIX_BYTES:
        raise UnusableObject("a stored file was cut short")
    start, checksum = prefix[: _START.size], prefix[_START.size :]
    magic, version, _, length = _START.unpack(start)
    if (magic, version) != (_MAGIC, _VERSION) or length > MAX_HEAD_BYTES:
        raise UnusableObject("a stored file has no head of this version")
    head = file.read(length)
    if xxh3_64_digest(start + head) != checksum:
        raise UnusableObject("the head of a stored file is damaged")
    try:
        stored = unpack_object(head)
    except msgspec.MsgspecError as error:
        raise UnusableObject("the head of a stored file has other fields") from error
    size_bytes = os.fstat(file.fileno()).st_size - _PREFIX_BYTES - length
    if path.name != file_name(stored.key) or size_bytes != stored.size_bytes:
        raise UnusableObject("a stored file is not what its head says")
    return stored


def _write_all(file: FileIO, data: bytes | memoryview) -> None:
    """An unbuffered file may take a part of what it is given."""
    left = memoryview(data).cast("B")
    while left:
        left = left[file.write(left) :]
