"""What crosses between the block index's actor and its callers: bytes in, bytes out.

MessagePack arrays of plain values; block hashes travel as packed little-endian u64, never as lists.
Event batches and snapshots have the form of `router.core.events`.
`hello` and the hand-over keep their form across protocols, all else may change with `PROTOCOL`.
"""

from enum import IntEnum

import msgspec
import numpy as np
from numpy.typing import NDArray

from router.core.store_access import LoadLine
from router.core.transfer import StoredRun
from router.core.types import BookingId, ReplicaId, StoreId, Tenant

PROTOCOL = 4
"""Changes with the meaning of any message below; another number means a successor actor."""

HASH_BYTES = 8

MAX_FLIGHT_REQUESTS = 64
MAX_BATCH_BLOCKS = 1024
"""Blocks in one event batch or snapshot chunk: what the index applies in about a millisecond."""


class Message(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Encoded as an array of its fields in order. Cyclic collection never has to look inside."""


class Profile(Message, frozen=True):
    """A policy with its parameters as JSON, matched in the ingress; written once a flight."""

    policy: str
    parameters: str


class Selection(Message, frozen=True):
    """One prompt that wants a replica; see `router.decision.SelectRequest`.

    `expires_at` is on the actor's clock: after it nobody waits for the answer any more. `blocks`
    is the prompt's share of the flight's `hashes`; `profile` an index into its `profiles`. `chains`
    parts `blocks` into those of each prompt, where there are several prompts or choices.
    """

    booking_id: BookingId
    tenant: Tenant
    blocks: int
    prompt_tokens: int
    block_size: int
    expires_at: float
    lease_s: float
    profile: int
    reads_cache: bool
    candidates: tuple[ReplicaId, ...] | None
    excluded: tuple[ReplicaId, ...]
    output_tokens: int | None
    session_hint: str | None
    chains: tuple[int, ...] = ()


class Announcement(Message, frozen=True):
    """A booking that the caller holds and the actor may not know: made without it or before it."""

    booking_id: int
    replica_id: str
    lease_s: float
    prompt_tokens: int
    uncached_tokens: int
    block_size: int
    tenant: str
    is_decoding: bool
    output_tokens: int


class Flight(Message, frozen=True):
    """All that one caller has to say at one moment, applied in the order of the fields.

    `first_tokens` and `settled` are packed u64 booking ids. `progress` is (booking, output tokens
    so far), `moved` (booking, replica). `members_version` is the caller's last known. `departed`
    are replicas that the caller's Serve has ceased to send to.
    """

    members_version: int
    departed: list[ReplicaId]
    announced: list[Announcement]
    moved: list[tuple[int, str]]
    first_tokens: bytes
    progress: list[tuple[int, int]]
    settled: bytes
    profiles: list[Profile]
    selections: list[Selection]
    hashes: bytes


class Outcome(IntEnum):
    """What became of one selection."""

    CHOSEN = 0
    EXPIRED = 1
    NO_REPLICA = 2
    INVALID_POLICY = 3


class Answer(Message, frozen=True):
    """The decision on one selection; blocks are counted from the prompt's start.

    `ranked` starts with the chosen replica. Anything but `CHOSEN` booked nothing, and only the
    outcome means something. See `router.decision.Decision`.
    """

    outcome: int
    reason: str = ""
    ranked: tuple[ReplicaId, ...] = ()
    overlap_blocks: int = 0
    speculative_blocks: int = 0
    forecast_blocks: int = 0
    uncached_tokens: int = 0
    load_blocks: int = 0
    chain_overlaps: tuple[int, ...] = ()
    decided_seq: int | None = None
    loads: tuple[StoredRun, ...] = ()
    seen_blocks: int = 0


class Landing(Message, frozen=True):
    """The answer to a flight.

    `incarnation` and `now` are the actor's life and clock. `members` is there only where the
    caller's version was another. `refilling` replicas are registered, but what they hold is not
    fully known. `unplaced` announcements name replicas that are not registered (yet): they are to
    be repeated. `successor` names the actor that took over: nothing of the flight was applied,
    all of it belongs there.
    """

    incarnation: int
    now: float
    members_version: int
    members: tuple[str, ...] | None
    refilling: int
    unplaced: list[int]
    answers: list[Answer]
    successor: str | None = None


class Registration(Message, frozen=True):
    """One life of a replica: a restart of its engine or of itself is another.

    `cache_tokens`: what its cache holds on the GPU, if it says so. `store_id`: its node's KV store,
    if it uses one, and what loads from stores have been measured to take.
    """

    replica_id: str
    incarnation: int
    cache_tokens: int | None = None
    store_id: StoreId | None = None
    load_line: LoadLine | None = None


class Verdict(IntEnum):
    """What the index made of a replica's message, as what the replica is to do next."""

    ACCEPTED = 0
    WANTS_SNAPSHOT = 1
    """Something is missing: send everything."""
    REGISTER = 2
    """This life is not registered."""
    REINCARNATE = 3
    """This life has ended here: begin another."""
    TOO_LARGE = 4
    FULL = 5
    """No slot is left."""
    MOVED = 6


class Receipt(Message, frozen=True):
    """The answer to a replica or a store. Another `incarnation` than before: tell everything."""

    incarnation: int
    verdict: int
    successor: str | None = None


def encode(message: Message) -> bytes:
    return _ENCODER.encode(message)


def decode_flight(payload: bytes) -> Flight:
    """Raises `msgspec.MsgspecError` on anything but a flight. O(selections)."""
    return _FLIGHT.decode(payload)


def decode_landing(payload: bytes) -> Landing:
    return _LANDING.decode(payload)


def decode_registration(payload: bytes) -> Registration:
    return _REGISTRATION.decode(payload)


def decode_receipt(payload: bytes) -> Receipt:
    return _RECEIPT.decode(payload)


def pack_ids(ids: list[int]) -> bytes:
    return np.array(ids, dtype="<u8").tobytes()


def unpack_u64(packed: bytes) -> NDArray[np.uint64]:
    """A read-only view, no copy. Raises `ValueError` unless the length is a multiple of 8."""
    return np.frombuffer(packed, dtype="<u8")


_ENCODER = msgspec.msgpack.Encoder()
_FLIGHT = msgspec.msgpack.Decoder(Flight)
_LANDING = msgspec.msgpack.Decoder(Landing)
_REGISTRATION = msgspec.msgpack.Decoder(Registration)
_RECEIPT = msgspec.msgpack.Decoder(Receipt)
