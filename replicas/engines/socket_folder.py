"""A folder for one process's Unix sockets, which nobody else may enter.

What a killed process could not remove goes when another folder of the same kind is made. Whether a
process lives is told by a lock on its folder, which the kernel takes from it with its life: process
ids come again, and mean nothing outside of their container.
"""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


class SocketFolder:
    """Made under a name that begins with `kind`, with mode 0700; removed by `close`."""

    def __init__(self, kind: str) -> None:
        _sweep(kind)
        self.path, self._lock = _made(kind)

    def close(self) -> None:
        """Idempotent."""
        shutil.rmtree(self.path, ignore_errors=True)
        lock, self._lock = self._lock, None
        if lock is not None:
            os.close(lock)


def _made(kind: str) -> tuple[Path, int | None]:
    """The folder and its lock. A sweep may come between the two: it then has taken the folder."""
    while True:
        path = Path(tempfile.mkdtemp(prefix=kind))
        with suppress(FileNotFoundError, BlockingIOError):
            lock = _locked(path)
            if path.exists():
                return path, lock
            os.close(lock)


def _sweep(kind: str) -> None:
    """Removes what no living process holds; what is somebody else's is left alone."""
    for path in Path(tempfile.gettempdir()).glob(f"{kind}*"):
        with suppress(OSError), _held(path) as folder:
            if os.fstat(folder).st_uid == os.getuid():
                shutil.rmtree(path)


@contextmanager
def _held(path: Path) -> Iterator[int]:
    folder = _locked(path)
    try:
        yield folder
    finally:
        os.close(folder)


def _locked(path: Path) -> int:
    """Raises `OSError`: `BlockingIOError` where another holds the lock."""
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(folder)
        raise
    return folder
