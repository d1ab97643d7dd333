"""What one caller process has booked, and what the block index has yet to be told by it.

Pure. The caller's own record is what makes the index's ledger rebuildable: a fresh index is told
of every live booking again, and what was decided without it is announced once it is back.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import TypeVar

from router.core.types import BookingId, ReplicaId, Tenant
from router.serve.wire import Announcement

K = TypeVar("K")
V = TypeVar("V")


@dataclass(slots=True)
class LiveBooking:
    """A request under way: what was booked, where, and how far it is."""

    replica_id: ReplicaId
    tenant: Tenant
    prompt_tokens: int
    uncached_tokens: int
    block_size: int
    is_decoding: bool = False
    output_tokens: int = 0


@dataclass(slots=True)
class Notes:
    """News for the index, by kind; all idempotent, so that a lost call may be repeated."""

    moved: dict[BookingId, ReplicaId] = field(default_factory=dict)
    first_tokens: dict[BookingId, None] = field(default_factory=dict)
    progress: dict[BookingId, int] = field(default_factory=dict)
    settled: dict[BookingId, None] = field(default_factory=dict)
    departed: dict[ReplicaId, None] = field(default_factory=dict)

    def __len__(self) -> int:
        started = len(self.moved) + len(self.first_tokens) + len(self.progress)
        return started + len(self.settled) + len(self.departed)

    def drop(self, booking_id: BookingId) -> None:
        """Nothing but its end matters of a booking that ended."""
        self.moved.pop(booking_id, None)
        self.first_tokens.pop(booking_id, None)
        self.progress.pop(booking_id, None)


class CallerBookings:
    """Live bookings of one process by id, bounded, with the notes that wait to be sent.

    `in_flight` counts them by replica. Past `max_live` a booking is not recorded (`untracked`
    counts those): it is in the index only and lapses by lease should the index restart. Past
    `max_notes` the oldest ends are dropped (`dropped_notes`): those lapse by lease, too.
    """

    def __init__(self, lease_s: float, max_live: int = 65_536, max_notes: int = 65_536) -> None:
        self.in_flight: dict[ReplicaId, int] = {}
        self.untracked = 0
        self.dropped_notes = 0
        self._lease_s = lease_s
        self._max_live = max_live
        self._max_notes = max_notes
        self._live: dict[BookingId, LiveBooking] = {}
        self._unannounced: dict[BookingId, None] = {}
        self._notes = Notes()

    def __len__(self) -> int:
        return len(self._live)

    @property
    def has_news(self) -> bool:
        return bool(self._unannounced) or len(self._notes) > 0

    def add(self, booking_id: BookingId, booking: LiveBooking, *, is_announced: bool) -> None:
        """`is_announced`: the index made this booking, so that it knows."""
        if len(self._live) >= self._max_live:
            self.untracked += 1
            return
        self._live[booking_id] = booking
        self._count(booking.replica_id, 1)
        if not is_announced:
            self._unannounced[booking_id] = None

    def first_token(self, booking_id: BookingId) -> None:
        booking = self._live.get(booking_id)
        if booking is not None and not booking.is_decoding:
            booking.is_decoding = True
            if booking_id not in self._unannounced:
                self._notes.first_tokens[booking_id] = None

    def progress(self, booking_id: BookingId, output_tokens: int) -> None:
        booking = self._live.get(booking_id)
        if booking is not None:
            booking.output_tokens = max(booking.output_tokens, output_tokens)
            if booking_id not in self._unannounced:
                self._notes.progress[booking_id] = booking.output_tokens

    def move(self, booking_id: BookingId, replica_id: ReplicaId) -> None:
        booking = self._live.get(booking_id)
        if booking is not None and booking.replica_id != replica_id:
            self._count(booking.replica_id, -1)
            self._count(replica_id, 1)
            booking.replica_id = replica_id
            if booking_id not in self._unannounced:
                self._notes.moved[booking_id] = replica_id

    def settle(self, booking_id: BookingId) -> None:
        """Idempotent. What the index never heard of needs no end there."""
        booking = self._live.pop(booking_id, None)
        if booking is None:
            if self.untracked:
                self.release(booking_id)
            return
        self._count(booking.replica_id, -1)
        self._notes.drop(booking_id)
        if booking_id in self._unannounced:
            del self._unannounced[booking_id]
        else:
            self.release(booking_id)

    def settle_all(self) -> None:
        """The process goes: whatever it had under way ends with it."""
        for booking_id in list(self._live):
            self.settle(booking_id)

    def release(self, booking_id: BookingId) -> None:
        """Ends a booking in the index that is not live here: nobody took the decision."""
        settled = self._notes.settled
        settled[booking_id] = None
        if len(settled) > self._max_notes:
            del settled[next(iter(settled))]
            self.dropped_notes += 1

    def note_departed(self, replica_ids: Iterable[ReplicaId]) -> None:
        """Serve sends to these no more. The oldest are left to their leases past the bound."""
        departed = self._notes.departed
        departed.update(dict.fromkeys(replica_ids))
        for replica_id in list(islice(departed, max(0, len(departed) - self._max_notes))):
            del departed[replica_id]

    def renew(self) -> None:
        """Tells how far each live booking is, which extends its lease. O(live bookings)."""
        for booking_id, booking in self._live.items():
            if booking_id not in self._unannounced:
                self._notes.progress[booking_id] = booking.output_tokens

    def announce_all(self) -> None:
        """The index is another and knows of nothing."""
        self._unannounced = dict.fromkeys(self._live)
        self._notes = Notes()

    def announce_again(self, booking_ids: Iterable[int]) -> None:
        """The index could not enter these yet."""
        live = (BookingId(key) for key in booking_ids if key in self._live)
        self._unannounced.update(dict.fromkeys(live))

    def take_notes(self, limit: int) -> Notes:
        """At most `limit` notes of each kind, which leave here. The oldest first."""
        notes = self._notes
        if len(notes) <= limit:
            self._notes = Notes()
            return notes
        return Notes(
            dict(_pop(notes.moved, limit)),
            dict(_pop(notes.first_tokens, limit)),
            dict(_pop(notes.progress, limit)),
            dict(_pop(notes.settled, limit)),
            dict(_pop(notes.departed, limit)),
        )

    def take_announcements(self, limit: int) -> list[Announcement]:
        """At most `limit` bookings that the index has not heard of; from here on it has."""
        booking_ids = list(islice(self._unannounced, limit))
        for booking_id in booking_ids:
            del self._unannounced[booking_id]
        return [self._announcement(booking_id) for booking_id in booking_ids]

    def put_back(self, notes: Notes, announced: Iterable[Announcement]) -> None:
        """The call that carried these failed: they are news again where nothing newer is."""
        newer, self._notes = self._notes, notes
        self.announce_again(announcement.booking_id for announcement in announced)
        for booking_id in newer.settled:
            notes.drop(booking_id)
            self.release(booking_id)
        notes.moved |= newer.moved
        notes.first_tokens |= newer.first_tokens
        notes.progress |= newer.progress
        notes.departed |= newer.departed

    def _announcement(self, booking_id: BookingId) -> Announcement:
        booking = self._live[booking_id]
        return Announcement(
            booking_id,
            booking.replica_id,
            self._lease_s,
            booking.prompt_tokens,
            booking.uncached_tokens,
            booking.block_size,
            booking.tenant,
            booking.is_decoding,
            booking.output_tokens,
        )

    def _count(self, replica_id: ReplicaId, change: int) -> None:
        count = self.in_flight.get(replica_id, 0) + change
        if count:
            self.in_flight[replica_id] = count
        else:
            del self.in_flight[replica_id]


def _pop(notes: dict[K, V], limit: int) -> Iterator[tuple[K, V]]:
    for key in list(islice(notes, limit)):
        yield key, notes.pop(key)
