"""The load ledger: what has been routed to each replica and has not ended there.

Pure. The time is an argument, and nothing leaves by the arrival of something else alone: a timer
calls `sweep`. All calls but those that say otherwise are O(log bookings).
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from router.core.lapses import LapseQueue
from router.core.types import BookingId, Slot, Tenant


@dataclass(frozen=True, slots=True)
class Booking:
    """One routed request, as it is entered.

    `uncached_tokens` are those of its `prompt_tokens` that the replica is expected to compute. The
    booking lapses `lease_s` seconds after the last call that renewed it.
    """

    booking_id: BookingId
    slot: Slot
    tenant: Tenant
    prompt_tokens: int
    uncached_tokens: int
    block_size: int
    lease_s: float


@dataclass(frozen=True, slots=True)
class TenantLoad:
    """What one tenant has booked on all replicas together."""

    prefill_tokens: int = 0
    decode_blocks: int = 0
    requests: int = 0


@dataclass(slots=True)
class LedgerCounters:
    """Calls by outcome since the start. `unknown` are those for a booking that is not there."""

    booked: int = 0
    duplicate: int = 0
    unknown: int = 0
    settled: int = 0
    moved: int = 0
    swept: int = 0
    displaced: int = 0
    forgotten: int = 0


@dataclass(slots=True)
class _Entry:
    """A live booking and what of it stands in the arrays right now."""

    booking: Booking
    prefill_tokens: int
    decode_blocks: int


class LoadLedger:
    """Loads by slot, as int64 arrays of length `max_replicas`, and by tenant.

    `prefill_tokens`: booked uncached prompt tokens of requests without a first token;
    `decode_blocks`: KV blocks that booked requests hold or will hold once scheduled, prompt and
    output so far; `requests`: booked requests. At most `max_bookings` are kept: at the cap a
    booking displaces the one that would lapse first.
    """

    def __init__(self, max_replicas: int, max_bookings: int = 65_536) -> None:
        if max_replicas < 1 or max_bookings < 1:
            raise ValueError("a ledger holds at least one replica and one booking")
        self.max_bookings = max_bookings
        self.counters = LedgerCounters()
        self._loads = np.zeros((3, max_replicas), dtype=np.int64)
        # One cell through a memoryview costs a third of one through the array.
        self._cells: tuple[memoryview[int], ...] = tuple(row.data for row in self._loads)
        self._entries: dict[BookingId, _Entry] = {}
        self._by_slot: dict[Slot, set[BookingId]] = {}
        self._by_tenant: dict[Tenant, list[int]] = {}
        self._lapses: LapseQueue[BookingId] = LapseQueue()
        self.loads = self._loads.view()
        self.loads.flags.writeable = False
        self.prefill_tokens, self.decode_blocks, self.requests = self.loads

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, booking_id: BookingId) -> bool:
        return booking_id in self._entries

    def tenant(self, tenant: Tenant) -> TenantLoad:
        return TenantLoad(*self._by_tenant.get(tenant, ()))

    def tenants(self) -> dict[Tenant, TenantLoad]:
        """Tenants with at least one booking. A copy; O(tenants)."""
        return {tenant: TenantLoad(*load) for tenant, load in self._by_tenant.items()}

    def get(self, booking_id: BookingId) -> Booking | None:
        entry = self._entries.get(booking_id)
        return None if entry is None else entry.booking

    def outstanding(self) -> Iterator[tuple[Booking, int, int]]:
        """Live bookings, each with its prefill tokens and decode blocks as they stand."""
        for entry in self._entries.values():
            yield entry.booking, entry.prefill_tokens, entry.decode_blocks

    def book(self, booking: Booking, now: float) -> list[Booking]:
        """Enters a booking; returns those that it displaced, none below the cap.

        A booking id that is there already changes nothing and is counted.
        """
        if booking.booking_id in self._entries:
            self.counters.duplicate += 1
            return []
        displaced = self._make_room()
        blocks = _blocks(booking.prompt_tokens, booking.block_size)
        entry = _Entry(booking, booking.uncached_tokens, blocks)
        self._entries[booking.booking_id] = entry
        self._lapses.add(booking.booking_id, now + booking.lease_s)
        self._enter_slot(entry)
        self.counters.booked += 1
        return displaced

    def first_token(self, booking_id: BookingId, now: float) -> bool:
        """The prefill is done. Renews the lease. False where the booking is not there."""
        entry = self._known(booking_id)
        if entry is None:
            return False
        self._add(entry, -entry.prefill_tokens, 0, 0)
        entry.prefill_tokens = 0
        self._lapses.extend(booking_id, now + entry.booking.lease_s)
        return True

    def progress(self, booking_id: BookingId, output_tokens: int, now: float) -> bool:
        """`output_tokens` so far: a total that only grows. Renews the lease like `first_token`."""
        entry = self._known(booking_id)
        if entry is None:
            return False
        booking = entry.booking
        blocks = _blocks(booking.prompt_tokens + output_tokens, booking.block_size)
        grown = max(blocks - entry.decode_blocks, 0)
        self._add(entry, 0, grown, 0)
        entry.decode_blocks += grown
        self._lapses.extend(booking_id, now + booking.lease_s)
        return True

    def move(self, booking_id: BookingId, slot: Slot) -> bool:
        """Another replica took the request: its load moves as it stands."""
        entry = self._known(booking_id)
        if entry is None:
            return False
        if slot != entry.booking.slot:
            self._leave_slot(entry)
            entry.booking = replace(entry.booking, slot=slot)
            self._enter_slot(entry)
            self.counters.moved += 1
        return True

    def settle(self, booking_id: BookingId) -> Booking | None:
        """The request ended, however: releases and returns what was booked."""
        if self._known(booking_id) is None:
            return None
        self._lapses.remove(booking_id)
        self.counters.settled += 1
        return self._take_out(booking_id)

    def sweep(self, now: float) -> list[Booking]:
        """Releases and returns every booking whose lease has run out. O(lapsed · log bookings)."""
        swept = [self._take_out(booking_id) for booking_id in self._lapses.lapsed(now)]
        self.counters.swept += len(swept)
        return swept

    def forget(self, slot: Slot) -> list[Booking]:
        """The replica is gone: releases and returns all that was booked there. O(of them)."""
        booking_ids = sorted(self._by_slot.get(slot, ()))
        for booking_id in booking_ids:
            self._lapses.remove(booking_id)
        self.counters.forgotten += len(booking_ids)
        return [self._take_out(booking_id) for booking_id in booking_ids]

    def check_integrity(self) -> None:
        """Every total equals the sum of its bookings. O(replicas + bookings); for tests."""
        loads = np.zeros_like(self._loads)
        tenants: dict[Tenant, NDArray[np.int64]] = {}
        for booking_id, entry in self._entries.items():
            booking = entry.booking
            change = np.array([entry.prefill_tokens, entry.decode_blocks, 1])
            loads[:, booking.slot] += change
            tenants[booking.tenant] = tenants.get(booking.tenant, 0) + change
            assert booking_id in self._by_slot[booking.slot] and booking_id in self._lapses
        assert (loads == self._loads).all() and (loads >= 0).all()
        assert {tenant: load.tolist() for tenant, load in tenants.items()} == self._by_tenant
        assert len(self._lapses) == len(self._entries)
        assert sum(map(len, self._by_slot.values())) == len(self._entries) <= self.max_bookings

    def _known(self, booking_id: BookingId) -> _Entry | None:
        entry = self._entries.get(booking_id)
        if entry is None:
            self.counters.unknown += 1
        return entry

    def _add(self, entry: _Entry, prefill_tokens: int, decode_blocks: int, requests: int) -> None:
        slot, tenant = entry.booking.slot, entry.booking.tenant
        prefill_cells, block_cells, request_cells = self._cells
        prefill_cells[slot] += prefill_tokens
        block_cells[slot] += decode_blocks
        request_cells[slot] += requests
        load = self._by_tenant.setdefault(tenant, [0, 0, 0])
        load[0] += prefill_tokens
        load[1] += decode_blocks
        load[2] += requests
        if not load[2]:
            del self._by_tenant[tenant]

    def _take_out(self, booking_id: BookingId) -> Booking:
        """Off the books; the lease is the caller's to end."""
        entry = self._entries.pop(booking_id)
        self._leave_slot(entry)
        return entry.booking

    def _enter_slot(self, entry: _Entry) -> None:
        booking = entry.booking
        self._by_slot.setdefault(booking.slot, set()).add(booking.booking_id)
        self._add(entry, entry.prefill_tokens, entry.decode_blocks, 1)

    def _leave_slot(self, entry: _Entry) -> None:
        booking = entry.booking
        booked_there = self._by_slot[booking.slot]
        booked_there.remove(booking.booking_id)
        if not booked_there:
            del self._by_slot[booking.slot]
        self._add(entry, -entry.prefill_tokens, -entry.decode_blocks, -1)

    def _make_room(self) -> list[Booking]:
        displaced = []
        while len(self._entries) >= self.max_bookings:
            displaced.append(self._take_out(self._lapses.pop_first()))
        self.counters.displaced += len(displaced)
        return displaced


def _blocks(tokens: int, block_size: int) -> int:
    return -(-tokens // block_size)
