"""The block index as an ingress process sees it: always an answer, within one deadline.

Asks the actor, many requests in one call; decides locally when it is silent, gone or empty; keeps
the books of its own requests, so that neither a late answer nor a restart leaves load behind.
"""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from random import Random

from msgspec.structs import replace

from router.core.transfer import StoredRun
from router.core.types import BookingId, ReplicaId, Value
from router.serve.caller_bookings import CallerBookings, LiveBooking
from router.serve.coalescing import Cause
from router.serve.fallback import rank_locally
from router.serve.flight_desk import REFILLING
from router.serve.flights import Booked, RoutingRequest
from router.serve.index_link import IndexConnection, IndexLink
from router.serve.link_settings import LinkSettings
from router.serve.wire import Answer, Outcome

_CAUSES = {
    Outcome.EXPIRED: Cause.DEADLINE,
    Outcome.NO_REPLICA: Cause.NO_CANDIDATE,
    Outcome.INVALID_POLICY: Cause.INVALID_POLICY,
}


class Route(Value, frozen=True):
    """Where a request goes: `ranked` best first, empty where no replica is known to this process.

    Blocks are counted from the prompt's start: `overlap_blocks` confirmed, `speculative_blocks`
    counting those on their way there too, `forecast_blocks` expected not to be computed,
    `load_blocks` to be loaded after the confirmed ones out of `loads`, `seen_blocks` computed
    before somewhere. `chain_overlaps` are the confirmed blocks of each prompt, `decided_seq` the
    last event batch of the replica that the decision could know. `is_fallback`: decided here,
    without the index.
    """

    booking_id: BookingId
    ranked: tuple[ReplicaId, ...]
    reason: str
    overlap_blocks: int = 0
    speculative_blocks: int = 0
    forecast_blocks: int = 0
    load_blocks: int = 0
    is_fallback: bool = False
    chain_overlaps: tuple[int, ...] = ()
    decided_seq: int | None = None
    loads: tuple[StoredRun, ...] = ()
    seen_blocks: int = 0

    @property
    def replica_id(self) -> ReplicaId | None:
        """The chosen replica; None where the choice is Serve's."""
        return self.ranked[0] if self.ranked else None

    @property
    def is_blind(self) -> bool:
        """Chosen without knowing what every replica holds, and none that holds any of it."""
        return self.is_fallback or (not self.overlap_blocks and self.reason.endswith(REFILLING))


class IndexClient:
    """One for each process and model; every call belongs to the event loop that made it.

    The caller reports each request's course: `move` where another replica took it, `first_token`,
    `progress` now and then, and always `settle`.
    """

    def __init__(
        self, connection: IndexConnection, rng: Random, settings: LinkSettings | None = None
    ) -> None:
        settings = settings or LinkSettings()
        self._rng = rng
        self._bookings = CallerBookings(settings.lease_s)
        self._serving: tuple[ReplicaId, ...] | None = None
        self._link = IndexLink(connection, self._bookings, settings)
        self._selected = 0
        self._unplaced = 0
        self._fallbacks = dict.fromkeys(Cause, 0)

    async def select(self, request: RoutingRequest) -> Route:
        """A route within one deadline, whatever the state of the index. Books the request."""
        request = self._without_departed(request)
        if self._link.is_broken:
            # A caller that asks again and again must not keep the probe from the event loop.
            await asyncio.sleep(0)
            return self._decide_locally(request, Cause.BREAKER_OPEN)
        booked = Booked(self._new_id(), request)
        try:
            answer = await self._link.ask(booked)
        except asyncio.CancelledError:
            # Answered in the very turn of the loop in which the caller went away.
            self.settle(booked.booking_id)
            raise
        if isinstance(answer, Cause):
            return self._decide_locally(request, answer)
        if answer.outcome != Outcome.CHOSEN:
            return self._decide_locally(request, _CAUSES[Outcome(answer.outcome)])
        self._selected += 1
        return _route(booked.booking_id, answer)

    def first_token(self, booking_id: BookingId) -> None:
        self._bookings.first_token(booking_id)
        self._link.tell_soon()

    def progress(self, booking_id: BookingId, output_tokens: int) -> None:
        """`output_tokens` so far. For every block or so, not for every token."""
        self._bookings.progress(booking_id, output_tokens)
        self._link.tell_soon()

    def move(self, booking_id: BookingId, replica_id: ReplicaId) -> None:
        """Another replica than the first of `ranked` took the request."""
        self._bookings.move(booking_id, replica_id)
        self._link.tell_soon()

    def settle(self, booking_id: BookingId) -> None:
        """The request ended, however. Idempotent."""
        self._bookings.settle(booking_id)
        self._link.tell_soon()

    def update_members(self, members: Iterable[ReplicaId]) -> None:
        """All replicas that Serve would send to: no other is chosen from here on, by nobody.

        The index is told at once who has gone.
        """
        before, self._serving = self._serving or (), tuple(members)
        departed = [member for member in before if member not in self._serving]
        if departed:
            self._bookings.note_departed(departed)
            self._link.tell_soon(0.0)

    def adjust(self, settings: LinkSettings) -> None:
        """Other deadlines, for the next request; the lease of bookings stays as it was."""
        self._link.adjust(settings)

    def in_flight(self) -> dict[ReplicaId, int]:
        """This process's own requests under way by replica."""
        return dict(self._bookings.in_flight)

    def counters(self) -> dict[str, int]:
        """Everything counted since the start, by name; `selected` and the fallbacks are requests.

        `unplaced` fallbacks found no replica known to this process and left the choice to Serve.
        """
        return {
            "selected": self._selected,
            **{f"fallback_{cause}": count for cause, count in self._fallbacks.items()},
            "unplaced": self._unplaced,
            "untracked": self._bookings.untracked,
            "dropped_notes": self._bookings.dropped_notes,
            **asdict(self._link.counters),
        }

    async def close(self) -> None:
        """Who still waits decides locally, what is live is released, every task ends."""
        self._bookings.settle_all()
        await self._link.close()

    def _decide_locally(self, request: RoutingRequest, cause: Cause) -> Route:
        """Under an id of its own: the late answer to the first is released by that."""
        self._fallbacks[cause] += 1
        booking_id = self._new_id()
        ranked = rank_locally(request.hashes, self._eligible(request), self._bookings.in_flight)
        if ranked and cause is not Cause.CLOSED:
            self._bookings.add(booking_id, _cold(request, ranked[0]), is_announced=False)
        if not ranked:
            self._unplaced += 1
        return Route(booking_id, tuple(ranked), f"fallback:{cause}", is_fallback=True)

    def _eligible(self, request: RoutingRequest) -> Sequence[ReplicaId]:
        members = request.candidates or self._serving or self._link.members
        return [member for member in members if member not in request.excluded]

    def _without_departed(self, request: RoutingRequest) -> RoutingRequest:
        """The index learns by lease that a replica is gone; Serve knows it at once."""
        if self._serving is None or set(self._link.members) <= set(self._serving):
            return request
        departed = tuple(member for member in self._link.members if member not in self._serving)
        return replace(request, excluded=request.excluded + departed)

    def _new_id(self) -> BookingId:
        return BookingId(self._rng.getrandbits(64))


def _cold(request: RoutingRequest, replica_id: ReplicaId) -> LiveBooking:
    """What is booked where nothing is known of the replica's cache: the whole prompt."""
    tokens = request.prompt_tokens
    return LiveBooking(replica_id, request.tenant, tokens, tokens, request.block_size)


def _route(booking_id: BookingId, answer: Answer) -> Route:
    return Route(
        booking_id,
        answer.ranked,
        answer.reason,
        answer.overlap_blocks,
        answer.speculative_blocks,
        answer.forecast_blocks,
        answer.load_blocks,
        chain_overlaps=answer.chain_overlaps,
        decided_seq=answer.decided_seq,
        loads=answer.loads,
        seen_blocks=answer.seen_blocks,
    )
