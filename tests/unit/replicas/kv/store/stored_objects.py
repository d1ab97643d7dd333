"""Objects as engines save them, and places for them below memory."""

import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np

from replicas.kv.store.contents import StoredObject
from replicas.kv.store.objects import Bytes, ObjectKey, new_object, payload, seal
from replicas.kv.store.tier import TierFailed

BLOCKS = 2
PAYLOAD_BYTES = 200
OBJECT_BYTES = 128 + PAYLOAD_BYTES


def key_of(number: int) -> bytes:
    return ObjectKey(b"n" * 32, number.to_bytes(32, "big")).pack()


def sealed(number: int) -> Bytes:
    """Of which every byte of the blocks is `number`."""
    data = new_object(BLOCKS, PAYLOAD_BYTES // BLOCKS)
    payload(data)[:] = number
    seal(data, ObjectKey.unpack(key_of(number)), BLOCKS)
    return data


def head_of(number: int, *, is_for_reuse: bool = True) -> StoredObject:
    hashes = number.to_bytes(8, "little") * BLOCKS
    return StoredObject(key_of(number), "model", hashes, BLOCKS, OBJECT_BYTES, is_for_reuse)


def number_in(data: Bytes | None) -> int | None:
    return None if data is None else int(data[-1])


class NoChecksum:
    """In the place of `xxh3_128`: the same of everything."""

    def __init__(self, data: bytes) -> None:
        pass

    def update(self, data: memoryview) -> None:
        pass

    def digest(self) -> bytes:
        return bytes(16)


class Heap:
    """Handles are the bytes themselves."""

    def keep(self, data: Bytes) -> Bytes:
        return data.copy()

    def look(self, handle: Bytes) -> Bytes:
        return handle


class CountedTier:
    """A tier in memory that says what it was asked; it takes `room` objects and may be broken."""

    def __init__(self, name: str, room: int) -> None:
        self.name = name
        self.room = room
        self.held: dict[bytes, tuple[StoredObject, Bytes]] = {}
        self.is_broken = False
        self.gate = threading.Event()
        self.gate.set()
        self.asked = threading.Event()
        self.calls: list[tuple[str, bytes]] = []

    def scan(self) -> list[StoredObject]:
        return [stored for stored, _ in self.held.values()]

    def victims(self, stored: StoredObject) -> list[StoredObject]:
        if not self.room:
            return [stored]
        return [item for item, _ in list(self.held.values())[: len(self.held) + 1 - self.room]]

    def write(self, stored: StoredObject, data: Bytes) -> None:
        self._pass("write", stored.key)
        self.held[stored.key] = stored, np.array(data)

    def read(self, key: bytes) -> Bytes | None:
        self._pass("read", key)
        return self.held[key][1] if key in self.held else None

    def remove(self, keys: list[bytes]) -> None:
        for key in keys:
            self.held.pop(key, None)

    def claim(self, keys: list[bytes], *, is_claimed: bool) -> None:
        """Goes by age alone."""

    def size(self) -> tuple[int, int]:
        return len(self.held), OBJECT_BYTES * len(self.held)

    def close(self) -> None:
        self.gate.set()

    def _pass(self, what: str, key: bytes) -> None:
        self.asked.set()
        self.gate.wait(5)
        if self.is_broken:
            raise TierFailed("broken")
        self.calls.append((what, key))


def change_file(folder: Path, number: int, change: Callable[[bytes], bytes]) -> Path:
    """Changes a stored file behind its store's back."""
    (path,) = folder.rglob(f"{key_of(number).hex()}*")
    path.write_bytes(change(path.read_bytes()))
    return path
