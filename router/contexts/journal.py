"""The interface of a journal: rows by key, changed in durable batches by one life at a time."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from router.contexts.records import Entry

FORMAT = 1
"""Changes with the meaning of what is kept; a journal with a greater one is refused."""


class Journal(Protocol):
    """Blocking; one thread at a time, not always the same. Errors are `JournalError`s."""

    def claim(self) -> int:
        """Opens it for this life and fences every earlier one; returns the new epoch, from 1.

        Raises `JournalRefused` where it is damaged or newer, `JournalLost` out of reach.
        """
        ...

    def rows(self) -> Iterator[tuple[str, bytes]]:
        """Everything kept, in any order. Raises `JournalRefused` where it cannot be read."""
        ...

    def write(self, entries: Sequence[Entry]) -> None:
        """All of them or none; durable once it returns. The same batch again does no harm.

        Raises `JournalFenced` where a later life has claimed the journal, `JournalFull` where
        nothing was kept for want of room, `JournalLost` where it is not known.
        """
        ...

    def size_bytes(self) -> int:
        """What it takes on its medium."""
        ...

    def compact(self) -> None:
        """Gives back room that rows which are gone took; a bounded piece of work."""
        ...

    def close(self) -> None: ...


def merged(batches: Iterable[Sequence[Entry]]) -> list[Entry]:
    """One batch with the effect of all in their order: the last word on each key."""
    last: dict[str, bytes | None] = {}
    for batch in batches:
        last.update(batch)
    return list(last.items())
