"""Objects as files in a folder of a store's own."""

import fcntl
import logging
import os
import stat
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from replicas.kv.store.contents import StoredObject
from replicas.kv.store.object_file import (
    SUFFIX,
    UNFINISHED,
    file_name,
    read_file,
    read_head,
    write_file,
)
from replicas.kv.store.objects import Bytes, UnusableObject
from replicas.kv.store.shelf import Shelf
from replicas.kv.store.tier import TierFailed
from router.core.errors import ConfigurationError

_log = logging.getLogger(__name__)

_KEY = "kv_store.disk_folder"
MAX_STORES = 64
"""That share a folder on one machine: several nodes of a cluster may be on it."""


class DiskTier:
    """At most `budget_bytes` of objects, in the first folder inside `root` that no other store
    has; it is had until `close` or the end of the process.

    Files of ours that are damaged are removed when they are met; what is not ours is left alone.
    Raises `ConfigurationError` where others may write in `root`.
    """

    name = "disk"

    def __init__(self, root: Path, budget_bytes: int) -> None:
        self._shelf = Shelf(budget_bytes)
        self._objects: dict[bytes, StoredObject] = {}
        self._folder, self._lock = _own_folder(root)

    def scan(self) -> list[StoredObject]:
        with _translated():
            files = sorted(os.scandir(self._folder), key=_last_use)
        for file in files:
            if file.name.endswith(UNFINISHED):
                self._unlink(Path(file.path))
            elif file.name.endswith(SUFFIX):
                self._adopt(Path(file.path))
        return [self._objects[key] for key in self._shelf]

    def victims(self, stored: StoredObject) -> list[StoredObject]:
        is_claimed = not stored.is_for_reuse
        keys = self._shelf.victims(stored.key, stored.size_bytes, is_claimed=is_claimed)
        return [self._objects.get(key, stored) for key in keys]

    def write(self, stored: StoredObject, data: Bytes) -> None:
        with _translated():
            write_file(self._folder, stored, data)
            _mark_used(self._path(stored.key))
        self._enter(stored)

    def read(self, key: bytes) -> Bytes | None:
        if not self._shelf.touch(key):
            return None
        path = self._path(key)
        try:
            with _translated():
                data = read_file(path)
                _mark_used(path)
            return data
        except (UnusableObject, TierFailed) as error:
            _log.warning("a stored file is not used: %s", error.message)
            self.remove([key])
            return None

    def remove(self, keys: Sequence[bytes]) -> None:
        for key in keys:
            if self._shelf.remove(key):
                del self._objects[key]
                self._unlink(self._path(key))

    def claim(self, keys: Sequence[bytes], *, is_claimed: bool) -> None:
        for key in keys:
            self._shelf.claim(key, is_claimed=is_claimed)

    def size(self) -> tuple[int, int]:
        return len(self._shelf), self._shelf.used_bytes

    def close(self) -> None:
        os.close(self._lock)

    def _adopt(self, path: Path) -> None:
        """What does not fit any more, as the budget is smaller than it was, goes."""
        try:
            stored = read_head(path)
        except (UnusableObject, OSError) as error:
            _log.warning("a file in the folder of stored objects is not used: %s", error)
            self._unlink(path)
            return
        for other in self.victims(stored):
            self.remove([other.key])
            if other is stored:
                self._unlink(path)
                return
        self._enter(stored)

    def _enter(self, stored: StoredObject) -> None:
        gone = self._shelf.put(stored.key, stored.size_bytes, is_claimed=not stored.is_for_reuse)
        assert not gone, "an object was written before there was room"
        self._objects[stored.key] = stored

    def _path(self, key: bytes) -> Path:
        return self._folder / file_name(key)

    def _unlink(self, path: Path) -> None:
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            _log.warning("a stored file could not be removed: %s", error)


def _own_folder(root: Path) -> tuple[Path, int]:
    """A folder and the descriptor that locks it."""
    make_private(root)
    for number in range(MAX_STORES):
        folder = root / str(number)
        make_private(folder)
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return folder, lock
        except BlockingIOError:
            os.close(lock)
    raise ConfigurationError(_KEY, f"{MAX_STORES} stores use {root} already")


def make_private(folder: Path) -> None:
    """Makes the folder where it is missing. Raises `ConfigurationError` where others may use it."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        state = folder.lstat()
    except OSError as error:
        raise ConfigurationError(_KEY, f"{folder} cannot be used: {error.strerror}") from error
    is_own = state.st_uid == os.geteuid() and not state.st_mode & 0o077
    if not (stat.S_ISDIR(state.st_mode) and is_own):
        raise ConfigurationError(_KEY, f"{folder} must be its owner's alone (mode 0700)")


def _mark_used(path: Path) -> None:
    """Finer than the system's own marks, which are the same for all of a few milliseconds."""
    now_ns = time.time_ns()
    os.utime(path, ns=(now_ns, now_ns))


def _last_use(file: "os.DirEntry[str]") -> int:
    return file.stat(follow_symlinks=False).st_mtime_ns


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise TierFailed(f"the disk refuses: {error.strerror}") from error
