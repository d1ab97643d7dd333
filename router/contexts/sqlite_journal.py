"""The embedded journal: one SQLite file, write-ahead log, on disk before a write returns."""

import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from router.contexts.journal import FORMAT
from router.contexts.records import RESTORE, Entry
from router.core.errors import JournalFenced, JournalFull, JournalLost, JournalRefused

_APPLICATION_ID = 0x57435458
_BUSY_LIMIT_S = 5.0
_PAGES_COMPACTED_AT_ONCE = 2048
_LOG_LIMIT_BYTES = 64 * 1024**2

_SCHEMA = """
CREATE TABLE entries (key TEXT PRIMARY KEY, value BLOB NOT NULL);
CREATE TABLE life (epoch INTEGER NOT NULL);
INSERT INTO life VALUES (0);
"""

_DAMAGED = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_FORMAT}
_PRIMARY_CODE = 0xFF


class SqliteJournal:
    """The file is readable by its owner only, and so is its folder where it is made here."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._epoch = 0
        self._connection: sqlite3.Connection | None = None

    def claim(self) -> int:
        self.close()
        with self._translated():
            self._connection = self._open()
            self._connection.execute("BEGIN IMMEDIATE")
            self._connection.execute("UPDATE life SET epoch = epoch + 1")
            (self._epoch,) = self._connection.execute("SELECT epoch FROM life").fetchone()
            self._connection.execute("COMMIT")
        return self._epoch

    def rows(self) -> Iterator[tuple[str, bytes]]:
        with self._translated():
            yield from self._opened.execute("SELECT key, value FROM entries")

    def write(self, entries: Sequence[Entry]) -> None:
        connection = self._opened
        try:
            with self._translated():
                connection.execute("BEGIN IMMEDIATE")
                self._check_epoch(connection)
                _apply(connection, entries)
                connection.execute("COMMIT")
        except BaseException:
            with self._translated():
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
            raise

    def size_bytes(self) -> int:
        sizes = 0
        for suffix in ("", "-wal"):
            with suppress(FileNotFoundError):
                sizes += os.stat(f"{self._path}{suffix}").st_size
        return sizes

    def compact(self) -> None:
        with self._translated():
            steps = f"PRAGMA incremental_vacuum({_PAGES_COMPACTED_AT_ONCE})"
            self._opened.execute(steps).fetchall()
            self._opened.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    @property
    def _opened(self) -> sqlite3.Connection:
        if self._connection is None:
            raise JournalLost("the journal is not open")
        return self._connection

    def _open(self) -> sqlite3.Connection:
        self._make_private()
        connection = sqlite3.connect(
            self._path, timeout=_BUSY_LIMIT_S, isolation_level=None, check_same_thread=False
        )
        try:
            _prepare(connection, self._path)
        except BaseException:
            connection.close()
            raise
        return connection

    def _make_private(self) -> None:
        """SQLite gives its log the permissions of the file."""
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
            self._path.chmod(0o600)
        except OSError as error:
            raise JournalLost(f"{self._path} cannot be opened: {error.strerror}") from error

    def _check_epoch(self, connection: sqlite3.Connection) -> None:
        (epoch,) = connection.execute("SELECT epoch FROM life").fetchone()
        if epoch != self._epoch:
            raise JournalFenced(f"life {epoch} has taken over from life {self._epoch}")

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.DatabaseError as error:
            code = error.sqlite_errorcode & _PRIMARY_CODE
            if code in _DAMAGED:
                raise JournalRefused(f"{self._path} is damaged: {error}. {RESTORE}") from error
            if code in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR):
                raise JournalFull(f"{self._path} cannot be written: {error}") from error
            raise JournalLost(f"{self._path} cannot be used: {error}") from error


def _prepare(connection: sqlite3.Connection, path: Path) -> None:
    """Sees that the file is ours, of a format that we know, and durable at each commit."""
    (application_id,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if tables and application_id != _APPLICATION_ID:
        raise JournalRefused(f"{path} is no journal of contexts. Name another file.")
    if version > FORMAT:
        raise JournalRefused(
            f"{path} has format {version}, this version knows {FORMAT}. Run the newer version "
            "again, or move the file away to start with no contexts."
        )
    connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
    connection.execute("PRAGMA journal_mode = WAL").fetchone()
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute(f"PRAGMA journal_size_limit = {_LOG_LIMIT_BYTES}")
    if not tables:
        marks = f"PRAGMA application_id = {_APPLICATION_ID}; PRAGMA user_version = {FORMAT};"
        connection.executescript(f"BEGIN IMMEDIATE; {_SCHEMA} {marks} COMMIT;")


def _apply(connection: sqlite3.Connection, entries: Sequence[Entry]) -> None:
    kept = [(key, value) for key, value in entries if value is not None]
    gone = [(key,) for key, value in entries if value is None]
    connection.executemany(
        "INSERT INTO entries VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value",
        kept,
    )
    connection.executemany("DELETE FROM entries WHERE key = ?", gone)
