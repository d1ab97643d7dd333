"""A journal in memory whose medium fails as a test says."""

import threading
from collections.abc import Iterator, Sequence

from router.contexts.records import Entry
from router.core.errors import JournalError, JournalFenced


class Medium:
    """What outlives the journals that are opened on it."""

    def __init__(self) -> None:
        self.rows: dict[str, bytes] = {}
        self.epoch = 0
        self.writes = 0
        self.faults: list[JournalError] = []
        self.may_write = threading.Event()
        self.may_write.set()


class MemoryJournal:
    """`Medium.faults` are raised by the next writes, one each; `may_write` holds them up."""

    def __init__(self, medium: Medium) -> None:
        self._medium = medium
        self._epoch = 0

    def claim(self) -> int:
        self._medium.epoch += 1
        self._epoch = self._medium.epoch
        return self._epoch

    def rows(self) -> Iterator[tuple[str, bytes]]:
        yield from list(self._medium.rows.items())

    def write(self, entries: Sequence[Entry]) -> None:
        assert self._medium.may_write.wait(10)
        if self._medium.epoch != self._epoch:
            raise JournalFenced("another life")
        if self._medium.faults:
            raise self._medium.faults.pop(0)
        self._medium.writes += 1
        for key, value in entries:
            if value is None:
                self._medium.rows.pop(key, None)
            else:
                self._medium.rows[key] = value

    def size_bytes(self) -> int:
        return sum(map(len, self._medium.rows.values()))

    def compact(self) -> None:
        return

    def close(self) -> None:
        return
