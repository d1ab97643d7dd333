"""A table from what a journal held: the next life takes up where the last write ended."""

from router.contexts import records
from router.contexts.context import Context, Moment, Turn
from router.contexts.history import Segment
from router.contexts.records import Contents, ContextRow, Entry
from router.contexts.settings import ContextSettings
from router.contexts.table import ContextTable
from router.contexts.tombstones import Tombstone
from router.core.types import ContextId


def restored(
    contents: Contents, settings: ContextSettings, epoch: int, now: Moment
) -> tuple[ContextTable, list[Entry]]:
    """The table, and the rows by which what nobody needs any more leaves the journal.

    What is left of a TTL is computed from wall time but is never less than a minute; a turn that
    was open has a fresh lease, and its ingress may renew it.
    """
    next_segment_id = max(contents.segments, default=0) + 1
    table = ContextTable(settings, epoch, now.monotonic, next_segment_id)
    for context_id, row in sorted(contents.contexts.items(), key=lambda item: item[1].created_at):
        segment = contents.segments[row.segment_id]
        table.shelf.put(_context(context_id, row, segment, settings, now))
    stones = sorted(contents.tombstones.items(), key=lambda item: item[1].expired_at)
    for context_id, stone in stones:
        left_s = min(stone.expired_at - now.wall, 0.0) + settings.tombstone_s
        table.tombstones.set(context_id, Tombstone(stone.tenant, now.monotonic + left_s))
    orphans = (segment for segment in contents.segments.values() if not segment.holders)
    return table, [records.no_segment(segment) for segment in orphans]


def _context(
    context_id: ContextId,
    row: ContextRow,
    history: Segment,
    settings: ContextSettings,
    now: Moment,
) -> Context:
    left_s = _left_s(row, settings.restart_floor_s, now.wall)
    lease = now.monotonic + settings.lease_s
    return Context(
        context_id,
        row.tenant,
        row.model,
        row.kind,
        history,
        row.created_at,
        row.last_used_at,
        now.monotonic + left_s,
        now.wall + left_s,
        row.ttl_s,
        row.metadata,
        row.usage,
        row.turns,
        row.replica_id,
        row.last_nonce,
        None if row.open_nonce is None else Turn(row.open_nonce, lease),
        row.claims,
    )


def _left_s(row: ContextRow, floor_s: float, wall: float) -> float:
    """A wall clock that was set back gives nothing beyond the whole TTL."""
    left_s = row.last_used_at + row.ttl_s - wall
    return max(min(left_s, row.ttl_s), floor_s)
