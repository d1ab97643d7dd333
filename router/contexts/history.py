"""Histories of contexts as chains of tails: what forks have in common exists once.

A segment is never changed. Its history is the leading part of its parent's that it keeps, then its
own tail; token ids and document each have their strand.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from router.contexts.messages import TOKEN_BYTES
from router.core.errors import MalformedMessage


class Strand(NamedTuple):
    """The first `kept` bytes of the parent's strand, then `tail`."""

    kept: int
    tail: bytes

    @property
    def length(self) -> int:
        return self.kept + len(self.tail)


@dataclass(eq=False, slots=True)
class Segment:
    """One turn's tail. `holders` are the contexts and segments that need it; see `HistoryPool`."""

    segment_id: int
    parent: "Segment | None"
    ids: Strand
    document: Strand
    holders: int = field(default=0, compare=False)

    @property
    def tokens(self) -> int:
        return self.ids.length // TOKEN_BYTES

    @property
    def own_bytes(self) -> int:
        return len(self.ids.tail) + len(self.document.tail)


def ids_of(tip: Segment) -> bytes:
    """All token ids, packed. O(segments + length)."""
    return _assemble(tip, lambda segment: segment.ids)


def document_of(tip: Segment) -> bytes:
    return _assemble(tip, lambda segment: segment.document)


def _assemble(tip: Segment, strand_of: Callable[[Segment], Strand]) -> bytes:
    parts: list[bytes] = []
    end = strand_of(tip).length
    segment: Segment | None = tip
    while segment is not None and end > 0:
        kept, tail = strand_of(segment)
        if end > kept:
            parts.append(tail[: end - kept])
            end = kept
        segment = segment.parent
    parts.reverse()
    return b"".join(parts)


class HistoryPool:
    """Makes segments, counts who needs them and how many bytes they take."""

    def __init__(self, next_id: int = 1) -> None:
        self._next_id = next_id
        self.stored_bytes = 0
        self.segments = 0

    def begin(self, ids: bytes, document: bytes) -> Segment:
        """A history without a parent, not held yet."""
        return self._make(None, Strand(0, ids), Strand(0, document))

    def extend(self, tip: Segment, ids: Strand, document: Strand) -> Segment:
        """The history `tip` cut and continued, not held yet.

        Raises `MalformedMessage` where more is to be kept than there is.
        """
        if ids.kept > tip.ids.length or document.kept > tip.document.length:
            raise MalformedMessage("a turn keeps more of a history than there is")
        parent: Segment | None = tip
        while (
            parent is not None
            and ids.kept <= parent.ids.kept
            and document.kept <= parent.document.kept
        ):
            parent = parent.parent
        return self._make(parent, ids, document)

    def hold(self, segment: Segment) -> list[Segment]:
        """One more context needs it; returns the segments that nobody needed before."""
        fresh = []
        current: Segment | None = segment
        while current is not None:
            current.holders += 1
            if current.holders > 1:
                break
            fresh.append(current)
            self._count(current, 1)
            current = current.parent
        return fresh

    def release(self, segment: Segment) -> list[Segment]:
        """One context less needs it; returns the segments that nobody needs any more."""
        unneeded = []
        current: Segment | None = segment
        while current is not None:
            current.holders -= 1
            if current.holders > 0:
                break
            unneeded.append(current)
            self._count(current, -1)
            current = current.parent
        return unneeded

    def _make(self, parent: Segment | None, ids: Strand, document: Strand) -> Segment:
        if len(ids.tail) % TOKEN_BYTES or ids.kept % TOKEN_BYTES:
            raise MalformedMessage("token ids are not packed as u32")
        segment = Segment(self._next_id, parent, ids, document)
        self._next_id += 1
        return segment

    def _count(self, segment: Segment, sign: int) -> None:
        self.segments += sign
        self.stored_bytes += sign * segment.own_bytes
