"""Contexts as rows of a journal: keys, checked payloads, and a whole table from its rows.

A row is 8 bytes of checksum over key and payload, then MessagePack. Wall times only: a monotonic
clock means nothing to the next process.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import msgspec
import xxhash

from router.contexts.context import Context
from router.contexts.history import Segment, Strand
from router.contexts.messages import Kind, Message, Usage
from router.core.errors import JournalRefused
from router.core.types import ContextId, ReplicaId, Tenant

Entry = tuple[str, bytes | None]
"""What a journal keeps under a key from here on; None: nothing any more."""

_CHECKSUM_BYTES = 8
_CONTEXT, _SEGMENT, _TOMBSTONE = "context/", "segment/", "tombstone/"

RESTORE = (
    "Stop the application, put back a copy of the journal that was good, or move it away to start "
    "with no contexts."
)


class ContextRow(Message, frozen=True):
    """`open_nonce`: a turn was under way, and may be again when its ingress renews it."""

    tenant: Tenant
    model: str
    kind: Kind
    segment_id: int
    created_at: float
    last_used_at: float
    ttl_s: int
    metadata: dict[str, str]
    usage: Usage
    turns: int
    replica_id: ReplicaId | None
    last_nonce: int | None
    open_nonce: int | None
    claims: bytes = b""


class SegmentRow(Message, frozen=True):
    parent_id: int | None
    kept_id_bytes: int
    id_tail: bytes
    kept_document_bytes: int
    document_tail: bytes


class TombstoneRow(Message, frozen=True):
    tenant: Tenant
    expired_at: float


@dataclass(slots=True)
class Contents:
    """What a journal held, with the segments that are needed linked up but held by nobody."""

    contexts: dict[ContextId, ContextRow] = field(default_factory=dict)
    segments: dict[int, Segment] = field(default_factory=dict)
    tombstones: dict[ContextId, TombstoneRow] = field(default_factory=dict)


def context_entry(context: Context) -> Entry:
    row = ContextRow(
        context.tenant,
        context.model,
        context.kind,
        context.history.segment_id,
        context.created_at,
        context.last_used_at,
        context.ttl_s,
        context.metadata,
        context.usage,
        context.turns,
        context.replica_id,
        context.last_nonce,
        None if context.turn is None else context.turn.nonce,
        context.claims,
    )
    return _entry(f"{_CONTEXT}{context.context_id}", row)


def segment_entry(segment: Segment) -> Entry:
    row = SegmentRow(
        None if segment.parent is None else segment.parent.segment_id,
        segment.ids.kept,
        segment.ids.tail,
        segment.document.kept,
        segment.document.tail,
    )
    return _entry(f"{_SEGMENT}{segment.segment_id}", row)


def tombstone_entry(context_id: ContextId, tenant: Tenant, expired_at: float) -> Entry:
    return _entry(f"{_TOMBSTONE}{context_id}", TombstoneRow(tenant, expired_at))


def no_context(context_id: ContextId) -> Entry:
    return f"{_CONTEXT}{context_id}", None


def no_segment(segment: Segment) -> Entry:
    return f"{_SEGMENT}{segment.segment_id}", None


def no_tombstone(context_id: ContextId) -> Entry:
    return f"{_TOMBSTONE}{context_id}", None


def read_rows(rows: Iterable[tuple[str, bytes]]) -> Contents:
    """All of a journal. Raises `JournalRefused` on the first row that is not what was written."""
    contents = Contents()
    segment_rows: dict[int, SegmentRow] = {}
    for key, row in rows:
        payload = _checked(key, row)
        kind, _, name = key.partition("/")
        try:
            if kind == "context":
                contents.contexts[ContextId(name)] = _CONTEXT_ROW.decode(payload)
            elif kind == "segment":
                segment_rows[int(name)] = _SEGMENT_ROW.decode(payload)
            elif kind == "tombstone":
                contents.tombstones[ContextId(name)] = _TOMBSTONE_ROW.decode(payload)
            else:
                raise _corrupted("a row of an unknown kind")
        except (msgspec.MsgspecError, ValueError) as error:
            raise _corrupted("a row that cannot be read") from error
    contents.segments = _linked(segment_rows)
    if any(row.segment_id not in contents.segments for row in contents.contexts.values()):
        raise _corrupted("a context without its history")
    return contents


def _linked(rows: Mapping[int, SegmentRow]) -> dict[int, Segment]:
    """A parent is older than its children, and so has the smaller id."""
    segments: dict[int, Segment] = {}
    for segment_id in sorted(rows):
        row = rows[segment_id]
        parent = None if row.parent_id is None else segments.get(row.parent_id)
        kept = (row.kept_id_bytes, row.kept_document_bytes)
        there = (parent.ids.length, parent.document.length) if parent is not None else (0, 0)
        if (parent is None) != (row.parent_id is None) or kept[0] > there[0] or kept[1] > there[1]:
            raise _corrupted("a history that lacks its beginning")
        ids = Strand(row.kept_id_bytes, row.id_tail)
        document = Strand(row.kept_document_bytes, row.document_tail)
        segments[segment_id] = Segment(segment_id, parent, ids, document)
    return segments


def _entry(key: str, row: Message) -> Entry:
    payload = _ENCODER.encode(row)
    return key, _checksum(key, payload) + payload


def _checked(key: str, row: bytes) -> bytes:
    payload = row[_CHECKSUM_BYTES:]
    if row[:_CHECKSUM_BYTES] != _checksum(key, payload):
        raise _corrupted("a row whose checksum is wrong")
    return payload


def _checksum(key: str, payload: bytes) -> bytes:
    digest = xxhash.xxh3_64(key.encode())
    digest.update(payload)
    return digest.digest()


def _corrupted(what: str) -> JournalRefused:
    return JournalRefused(f"The journal of contexts is damaged: it has {what}. {RESTORE}")


_ENCODER = msgspec.msgpack.Encoder()
_CONTEXT_ROW = msgspec.msgpack.Decoder(ContextRow)
_SEGMENT_ROW = msgspec.msgpack.Decoder(SegmentRow)
_TOMBSTONE_ROW = msgspec.msgpack.Decoder(TombstoneRow)
