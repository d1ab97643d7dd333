"""From waiting requests to one packed flight, and the actor's clock read off its answers. Pure."""

from collections.abc import Iterable

from router.core.types import BookingId, ReplicaId, Tenant, Value
from router.policies.base import NO_HINTS, Hints
from router.policies.registry import PolicySpec
from router.serve.caller_bookings import Notes
from router.serve.wire import (
    HASH_BYTES,
    Announcement,
    Flight,
    Profile,
    Selection,
    encode,
    pack_ids,
)

NEVER = float("inf")


class RoutingRequest(Value, frozen=True):
    """A prompt that wants a replica.

    `hashes` are those of its full blocks, packed little-endian u64. `candidates`: the replicas to
    choose from, all that are known if None; `excluded` ones have just failed this request.
    `reads_cache` is false where the engine will reuse nothing (prompt log-probabilities). Of a
    request with several prompts or choices `hashes` has all chains in a row and `chains` the blocks
    of each; for these nothing is loaded from stores.
    """

    hashes: bytes
    prompt_tokens: int
    block_size: int
    tenant: Tenant = Tenant("")
    policy: PolicySpec = PolicySpec()
    reads_cache: bool = True
    candidates: tuple[ReplicaId, ...] | None = None
    excluded: tuple[ReplicaId, ...] = ()
    hints: Hints = NO_HINTS
    chains: tuple[int, ...] = ()


class Booked(Value, frozen=True):
    """A routing request under the id that its booking will have."""

    booking_id: BookingId
    request: RoutingRequest


class ActorClock:
    """Translates times of this process to the actor's monotonic clock.

    An answer's time lies between sending and receiving, so the error is at most half a round trip;
    slow trips tell nothing. Host clocks need not agree.
    """

    def __init__(self, max_round_trip_s: float) -> None:
        self._max_round_trip_s = max_round_trip_s
        self._offset_s: float | None = None

    def observe(self, sent_at: float, received_at: float, actor_now: float) -> None:
        if received_at - sent_at <= self._max_round_trip_s:
            self._offset_s = actor_now - (sent_at + received_at) / 2

    def reset(self) -> None:
        """Another actor, another clock."""
        self._offset_s = None

    def to_actor(self, time: float) -> float:
        """`NEVER` while nothing is known: late answers are released in any case."""
        return NEVER if self._offset_s is None else time + self._offset_s


def pack_flight(
    booked: Iterable[tuple[Booked, float]],
    notes: Notes,
    announced: list[Announcement],
    *,
    lease_s: float,
    members_version: int,
) -> bytes:
    """One message of requests (each with its expiry on the actor's clock) and news.

    Every policy with its parameters is written once. O(requests + notes).
    """
    profiles: dict[PolicySpec, int] = {}
    selections = []
    hashes = []
    for item, expires_at in booked:
        profile = profiles.setdefault(item.request.policy, len(profiles))
        selections.append(_selection(item, expires_at, lease_s, profile))
        hashes.append(item.request.hashes)
    return encode(
        Flight(
            members_version,
            list(notes.departed),
            announced,
            list(notes.moved.items()),
            pack_ids(list(notes.first_tokens)),
            list(notes.progress.items()),
            pack_ids(list(notes.settled)),
            [Profile(spec.name, spec.parameters) for spec in profiles],
            selections,
            b"".join(hashes),
        )
    )


def _selection(item: Booked, expires_at: float, lease_s: float, profile: int) -> Selection:
    request = item.request
    return Selection(
        item.booking_id,
        request.tenant,
        len(request.hashes) // HASH_BYTES,
        request.prompt_tokens,
        request.block_size,
        expires_at,
        lease_s,
        profile,
        request.reads_cache,
        request.candidates,
        request.excluded,
        request.hints.expected_output_tokens,
        request.hints.session_hint,
        request.chains,
    )
