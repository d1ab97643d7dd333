"""What one life of the block index hands to the next, page by page. Pure.

The form of a page stays the same across protocols: replicas first, then bookings, then what each
replica holds, as snapshots.
"""

from collections.abc import Iterator
from itertools import islice

import msgspec

from router.core.events import SnapshotChunk
from router.core.index import BlockIndex
from router.core.ledger import Booking, LoadLedger
from router.core.types import ReplicaId, Slot
from router.serve.event_desk import EventDesk
from router.serve.flight_desk import FlightDesk
from router.serve.leases import ReplicaLeases
from router.serve.wire import MAX_BATCH_BLOCKS, Announcement, Message, Registration, encode

_PAGE_BOOKINGS = 4096


class Page(Message, frozen=True):
    """A part of the estate; each part is applied before the next is asked for."""

    replicas: list[Registration]
    bookings: list[Announcement]
    chunk: bytes


def pages(index: BlockIndex, ledger: LoadLedger, leases: ReplicaLeases) -> Iterator[bytes]:
    """Everything that `index` and `ledger` know; they are not to be changed meanwhile."""
    names = {lease.slot: lease.replica_id for lease in leases.leases()}
    registered = [Registration(lease.replica_id, lease.incarnation) for lease in leases.leases()]
    yield encode(Page(registered, [], b""))
    announced = _announcements(ledger, names)
    while part := list(islice(announced, _PAGE_BOOKINGS)):
        yield encode(Page([], part, b""))
    for chunk in index.snapshots(MAX_BATCH_BLOCKS):
        yield encode(Page([], [], chunk.pack()))


def take_over(page: bytes, events: EventDesk, flights: FlightDesk, now: float) -> None:
    """Raises `msgspec.MsgspecError` or `MalformedMessage` on what is no page."""
    part = _PAGE.decode(page)
    for registration in part.replicas:
        events.register(registration, now)
    for announcement in part.bookings:
        flights.announce(announcement, now)
    if part.chunk:
        events.snapshot(SnapshotChunk.unpack(part.chunk), now)


def _announcements(ledger: LoadLedger, names: dict[Slot, ReplicaId]) -> Iterator[Announcement]:
    for booking, prefill_tokens, decode_blocks in ledger.outstanding():
        yield _announcement(booking, names[booking.slot], prefill_tokens, decode_blocks)


def _announcement(
    booking: Booking, replica_id: ReplicaId, prefill_tokens: int, decode_blocks: int
) -> Announcement:
    """The output so far is not kept; as much as fills the blocks books the same load."""
    output_tokens = max(0, decode_blocks * booking.block_size - booking.prompt_tokens)
    return Announcement(
        booking.booking_id,
        replica_id,
        booking.lease_s,
        booking.prompt_tokens,
        booking.uncached_tokens,
        booking.block_size,
        booking.tenant,
        prefill_tokens == 0,
        output_tokens,
    )


_PAGE = msgspec.msgpack.Decoder(Page)
