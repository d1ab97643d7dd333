"""Enters what bookings are about to compute, and ends it with the booking, its time or an event."""

from router.core.block_table import Hashes
from router.core.chain_edits import MAX_EDIT_BLOCKS, ChainEditor
from router.core.chain_map import ChainMap, State
from router.core.room import Room
from router.core.types import BookingId, Slot, Tier


class Speculator:
    """The speculative entries of a chain map."""

    def __init__(self, chains: ChainMap, room: Room) -> None:
        self.refused = 0
        self._chains = chains
        self._sets = chains.sets
        self._claims = chains.claims
        self._editor = ChainEditor(chains)
        self._room = room

    def speculate(
        self, booking_id: BookingId, slot: Slot, hashes: Hashes, expires_at: float
    ) -> None:
        """Expects the blocks of a prompt on a replica until `expires_at`.

        Blocks that its GPU holds at this moment are left out: should they be evicted before the
        booking ends, they are gone. An event that stores a block ends the expectation of it.
        A booking that speculates again gives up its earlier entries; where there are too many
        bookings, nothing is entered and `refused` counts it. O(blocks).
        """
        self.retract(booking_id)
        if not self._claims.open(booking_id, slot, expires_at):
            self.refused += 1
            return
        sets, claims = self._sets, self._claims

        def claim(holders: int, owners: int) -> State:
            if sets.holds(holders, slot, Tier.GPU):
                return holders, owners
            return holders, claims.with_owner(owners, booking_id)

        parent = 0
        for start in range(0, len(hashes), MAX_EDIT_BLOCKS):
            part = hashes[start : start + MAX_EDIT_BLOCKS]
            self._editor.place(parent, part, claim)
            self._room.relieve(len(part))
            parent = int(part[-1])

    def retract(self, booking_id: BookingId) -> None:
        """Ends a booking's entries and no other's. Idempotent. O(segments)."""
        claim = self._claims.by_booking.get(booking_id)
        if claim is None:
            return
        for segment in list(claim.segments):
            holders, owners = self._chains.state(segment)
            state = holders, self._claims.without_owner(owners, booking_id)
            self._chains.set_state(segment, state)
        self._claims.close(booking_id)

    def retract_slot(self, slot: Slot) -> None:
        """Ends all entries on a replica. O(bookings)."""
        for booking_id in self._claims.of_slot(slot):
            self.retract(booking_id)

    def sweep(self, now: float) -> None:
        """Ends the entries whose time is over."""
        for booking_id in self._claims.lapsed(now):
            self.retract(booking_id)

    def confirm(self, slot: Slot) -> None:
        """Ends the entries of blocks that the replica's GPU holds by now. O(bookings)."""
        for booking_id in self._claims.of_slot(slot):
            for segment in list(self._claims.by_booking[booking_id].segments):
                holders, owners = self._chains.state(segment)
                if self._sets.holds(holders, slot, Tier.GPU):
                    state = holders, self._claims.without_slot(owners, slot)
                    self._chains.set_state(segment, state)
