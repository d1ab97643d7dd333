"""The load ledger: what has been routed to each replica and has not ended there.

Pure: the time is an argument, and a timer calls `sweep`. Calls are O(log bookings) unless they say
otherwise.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from router.core.cache_room import CacheRoom
from router.core.lapses import LapseQueue
from router.core.load_totals import Load, LoadTotals, TenantLoad
from router.core.rates import ReplicaRates
from router.core.store_access import StoreAccess
from router.core.types import BookingId, Slot, Tenant, Value


class Booking(Value, frozen=True):
    """One routed request, as it is entered.

    `uncached_tokens` are those of its `prompt_tokens` that the replica is expected to compute,
    `load_blocks` come from a store. It lapses `lease_s` seconds after it was last renewed.
    """

    booking_id: BookingId
    slot: Slot
    tenant: Tenant
    prompt_tokens: int
    uncached_tokens: int
    block_size: int
    lease_s: float
    load_blocks: int = 0


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
    began_alone_at: float | None
    """When it was booked, if no other prefill stood before it and nothing is to be loaded."""
    decodes_since: float | None = None


class LoadLedger:
    """Loads by slot, as live read-only float64 arrays of length `max_replicas`, and by tenant.

    `prefill_tokens`: booked uncached prompt tokens of requests without a first token;
    `decode_blocks`: KV blocks that booked requests hold or will hold once scheduled, prompt and
    output so far; `requests`: booked requests; `loads` [3, max_replicas]: these three.
    At most `max_bookings` are kept: at the cap a booking displaces the one that would lapse first.
    `loads_at` adds a fourth row, `RECENT_TOKENS`: the uncached tokens booked lately, ended or not,
    fading by half every `recent_half_life_s`: how much of each cache has been written over.
    `rates` learns from the same calls how fast each replica computes; `room` is what its cache can
    take beside what is booked, `stores` how it gets at stored blocks, where they are told.
    """

    def __init__(
        self, max_replicas: int, max_bookings: int = 65_536, recent_half_life_s: float = 40.0
    ) -> None:
        assert max_bookings >= 1
        self.max_bookings = max_bookings
        self.counters = LedgerCounters()
        self._totals = LoadTotals(max_replicas, recent_half_life_s)
        self.recent = self._totals.recent
        self.loads = self._totals.loads[: Load.RECENT_TOKENS]
        self.prefill_tokens, self.decode_blocks, self.requests = self.loads
        self.rates = ReplicaRates(max_replicas)
        self.room = CacheRoom(max_replicas)
        self.stores = StoreAccess(max_replicas)
        self._entries: dict[BookingId, _Entry] = {}
        self._lapses: LapseQueue[BookingId] = LapseQueue()

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, booking_id: BookingId) -> bool:
        return booking_id in self._entries

    def loads_at(self, now: float) -> NDArray[np.float64]:
        """All loads as they stand, by `Load`: float64 [4, max_replicas], live and read-only."""
        self.recent.fade(now)
        return self._totals.loads

    def tenant(self, tenant: Tenant) -> TenantLoad:
        return self._totals.tenant(tenant)

    def tenants(self) -> dict[Tenant, TenantLoad]:
        """Tenants with at least one booking. A copy; O(tenants)."""
        return self._totals.tenants()

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
        displaced = self._make_room() if len(self._entries) >= self.max_bookings else []
        blocks = _blocks(booking.prompt_tokens, booking.block_size)
        is_alone = not (booking.load_blocks or self.prefill_tokens.item(booking.slot))
        entry = _Entry(booking, booking.uncached_tokens, blocks, now if is_alone else None)
        self._entries[booking.booking_id] = entry
        self._lapses.add(booking.booking_id, now + booking.lease_s)
        self._add(entry, entry.prefill_tokens, entry.decode_blocks, 1)
        self.recent.add(booking.slot, booking.uncached_tokens, now)
        self.counters.booked += 1
        return displaced

    def first_token(self, booking_id: BookingId, now: float) -> bool:
        """The prefill is done. Renews the lease. False where the booking is not there."""
        entry = self._known(booking_id)
        if entry is None:
            return False
        if entry.began_alone_at is not None:
            took_ms = (now - entry.began_alone_at) * 1e3
            self.rates.prefill.observe(entry.booking.slot, entry.prefill_tokens, took_ms)
            entry.began_alone_at = None
        self._add(entry, -entry.prefill_tokens, 0, 0)
        entry.prefill_tokens, entry.decodes_since = 0, now
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
        if entry.decodes_since is not None and output_tokens:
            step_ms = (now - entry.decodes_since) * 1e3 / output_tokens
            self.rates.decode.observe(booking.slot, self.decode_blocks.item(booking.slot), step_ms)
        self._lapses.extend(booking_id, now + booking.lease_s)
        return True

    def move(self, booking_id: BookingId, slot: Slot) -> bool:
        """Another replica took the request: its load moves as it stands."""
        entry = self._known(booking_id)
        if entry is None:
            return False
        if slot != entry.booking.slot:
            self._add(entry, -entry.prefill_tokens, -entry.decode_blocks, -1)
            entry.booking = replace(entry.booking, slot=slot)
            self._add(entry, entry.prefill_tokens, entry.decode_blocks, 1)
            entry.began_alone_at = entry.decodes_since = None
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
        """The replica is gone: releases and returns all that was booked there. O(bookings)."""
        self.recent.leave(slot)
        self.rates.forget(slot)
        self.room.forget(slot)
        self.stores.forget(slot)
        booking_ids = [key for key, entry in self._entries.items() if entry.booking.slot == slot]
        for booking_id in booking_ids:
            self._lapses.remove(booking_id)
        self.counters.forgotten += len(booking_ids)
        return [self._take_out(booking_id) for booking_id in booking_ids]

    def check_integrity(self) -> None:
        """Every total equals the sum of its bookings. O(replicas + bookings); for tests."""
        expected = LoadTotals(self.loads.shape[1], recent_half_life_s=1.0)
        for booking, prefill_tokens, decode_blocks in self.outstanding():
            expected.add(booking.slot, booking.tenant, prefill_tokens, decode_blocks, 1)
            assert booking.booking_id in self._lapses
        rows = expected.loads[: Load.RECENT_TOKENS]
        assert (self.loads == rows).all() and (self._totals.loads >= 0).all()
        assert self.tenants() == expected.tenants()
        assert len(self._lapses) == len(self._entries) <= self.max_bookings

    def _known(self, booking_id: BookingId) -> _Entry | None:
        entry = self._entries.get(booking_id)
        if entry is None:
            self.counters.unknown += 1
        return entry

    def _add(self, entry: _Entry, prefill_tokens: int, decode_blocks: int, requests: int) -> None:
        booking = entry.booking
        self._totals.add(booking.slot, booking.tenant, prefill_tokens, decode_blocks, requests)
        if requests:
            written = booking.uncached_tokens + booking.load_blocks * booking.block_size
            self.room.add(booking.slot, requests * written)

    def _take_out(self, booking_id: BookingId) -> Booking:
        """Off the books; the lease is the caller's to end."""
        entry = self._entries.pop(booking_id)
        self._add(entry, -entry.prefill_tokens, -entry.decode_blocks, -1)
        return entry.booking

    def _make_room(self) -> list[Booking]:
        displaced = []
        while len(self._entries) >= self.max_bookings:
            displaced.append(self._take_out(self._lapses.pop_first()))
        self.counters.displaced += len(displaced)
        return displaced


def _blocks(tokens: int, block_size: int) -> int:
    return -(-tokens // block_size)
