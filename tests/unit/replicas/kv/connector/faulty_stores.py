"""Stores whose objects go wrong, for the connector to find out."""

import asyncio
import errno
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

import numpy as np

from replicas.kv.connector.messages import Piece
from replicas.kv.connector.pool import Bytes
from replicas.kv.connector.transfers import SealedObject
from replicas.kv.store.contents import StoreContents, StoredObject
from replicas.kv.store.disk_tier import DiskTier
from replicas.kv.store.tiered import TieredContents
from tests.unit.replicas.kv.connector.engine_pool import MemoryStore
from tests.unit.replicas.kv.store.stored_objects import Heap

Fault = Callable[["FaultyStore", list[Bytes | None]], list[Bytes | None]]


class FaultyStore(MemoryStore):
    """Has what `clean` has; each fetch goes wrong in one of the ways of `FAULTS`, or in none."""

    def __init__(self, clean: MemoryStore, random: Random) -> None:
        super().__init__()
        self.objects = dict(clean.objects)
        self.random = random
        self.fault = "none"

    def fetch(self, pieces: Sequence[Piece], timeout_s: float) -> list[Bytes | None]:
        self.fault = self.random.choice(list(FAULTS))
        found = super().fetch(pieces, timeout_s)
        return FAULTS[self.fault](self, [None if data is None else data.copy() for data in found])

    def place_in(self, found: Sequence[object]) -> int:
        return self.random.randrange(len(found))


def _flip(store: FaultyStore, found: list[Bytes | None]) -> list[Bytes | None]:
    data = found[store.place_in(found)]
    if data is not None:
        data[store.random.randrange(len(data))] ^= 1 << store.random.randrange(8)
    return found


def _cut(store: FaultyStore, found: list[Bytes | None]) -> list[Bytes | None]:
    place = store.place_in(found)
    data = found[place]
    found[place] = None if data is None else data[: store.random.randrange(len(data))]
    return found


def _grow(store: FaultyStore, found: list[Bytes | None]) -> list[Bytes | None]:
    place = store.place_in(found)
    data = found[place]
    found[place] = None if data is None else np.concatenate([data, data])
    return found


def _drop(store: FaultyStore, found: list[Bytes | None]) -> list[Bytes | None]:
    """One of a group is gone; or it came past the deadline, which is the same to who waits."""
    found[store.place_in(found)] = None
    return found


def _swap(store: FaultyStore, found: list[Bytes | None]) -> list[Bytes | None]:
    found[store.place_in(found)] = store.random.choice(list(store.objects.values())).data
    return found


def _zero(store: FaultyStore, found: list[Bytes | None]) -> list[Bytes | None]:
    data = found[store.place_in(found)]
    if data is not None:
        data[store.random.randrange(len(data)) :] = 0
    return found


def _short(store: FaultyStore, found: list[Bytes | None]) -> list[Bytes | None]:
    """An answer with too few objects."""
    return found[:-1]


def _late(store: FaultyStore, found: list[Bytes | None]) -> list[Bytes | None]:
    raise TimeoutError("the store did not answer in time")


def _gone(store: FaultyStore, found: list[Bytes | None]) -> list[Bytes | None]:
    raise ConnectionError("the store is gone")


FAULTS: dict[str, Fault] = {
    "none": lambda store, found: found,
    "flip": _flip,
    "cut": _cut,
    "grow": _grow,
    "drop": _drop,
    "swap": _swap,
    "zero": _zero,
    "short": _short,
    "late": _late,
    "gone": _gone,
}


class StoreOnDisk:
    """Memory for `room` objects above a disk, both of a store like a node's; damage is done to the
    files, to the disk and to the store's life."""

    def __init__(self, folder: Path, object_bytes: int, room: int, files: int) -> None:
        self._folder = folder
        self._object_bytes = object_bytes
        self._room, self._files = room, files
        self.is_full = False
        self._open()

    def offer(self, objects: Sequence[SealedObject]) -> list[bool]:
        return [self._contents.offer(_head(item)) for item in objects]

    def put(self, objects: Sequence[SealedObject]) -> None:
        for item in objects:
            self._contents.put(_head(item), item.data.copy())

    def fetch(self, pieces: Sequence[Piece], timeout_s: float) -> list[Bytes | None]:
        keys = [piece.key for piece in pieces]
        return asyncio.run(self._contents.fetch(keys, timeout_s))

    def discard(self, keys: Sequence[bytes]) -> None:
        self._contents.discard(keys)

    def restart(self) -> None:
        """All that was in memory alone is lost."""
        self.close()
        self._open()
        self.settle()

    def settle(self) -> None:
        self._contents.flush(5)

    def close(self) -> None:
        self._contents.close()

    def damage(self, random: Random) -> None:
        """A byte of some file is flipped, the file is cut short, or it is gone."""
        files = sorted(self._folder.rglob("*.kv"))
        if not files:
            return
        path = random.choice(files)
        data = bytearray(path.read_bytes())
        match random.randrange(3):
            case 0:
                data[random.randrange(len(data))] ^= 1 << random.randrange(8)
                path.write_bytes(data)
            case 1:
                path.write_bytes(data[: random.randrange(len(data))])
            case _:
                path.unlink()

    def synced(self, descriptor: int) -> None:
        """Stands in for `os.fsync`."""
        if self.is_full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _open(self) -> None:
        memory: StoreContents[Bytes] = StoreContents(self._room * self._object_bytes, 1000)
        disk = DiskTier(self._folder, self._files * self._object_bytes)
        self._contents = TieredContents(memory, Heap(), [disk], waiting_bytes=2**20)


def _head(item: SealedObject) -> StoredObject:
    return StoredObject(item.key, "model", item.hashes, item.blocks, item.data.nbytes, True)
