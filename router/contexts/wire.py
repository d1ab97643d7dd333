"""What crosses between the context manager and its callers: bytes in, bytes out.

MessagePack arrays of plain values. `hello` and the hand-over keep their form across protocols, all
else may change with `PROTOCOL`.
"""

from collections.abc import Mapping

import msgspec

from router.contexts.messages import (
    ContextPage,
    ContextView,
    Kind,
    Message,
    NewContext,
    OpenTurn,
    Ticket,
    TurnResult,
)
from router.core.types import ContextId, Tenant

PROTOCOL = 2
"""Changes with the meaning of any message below; another number means a successor actor."""


class Create(Message, frozen=True, tag=1):
    tenant: Tenant
    context_id: ContextId
    new: NewContext


class Get(Message, frozen=True, tag=2):
    tenant: Tenant
    context_id: ContextId


class Page(Message, frozen=True, tag=3):
    tenant: Tenant
    limit: int
    after: ContextId | None


class Patch(Message, frozen=True, tag=4):
    """None leaves it as it is; `metadata` replaces all of it."""

    tenant: Tenant
    context_id: ContextId
    ttl_s: int | None
    metadata: Mapping[str, str] | None


class Fork(Message, frozen=True, tag=5):
    """None takes the parent's."""

    tenant: Tenant
    context_id: ContextId
    child_id: ContextId
    ttl_s: int | None
    metadata: Mapping[str, str] | None


class Delete(Message, frozen=True, tag=6):
    tenant: Tenant
    context_id: ContextId


class Begin(Message, frozen=True, tag=7):
    """A turn; waits at most `wait_s` for another's end. The same `nonce` again is the same turn."""

    tenant: Tenant
    context_id: ContextId
    nonce: int
    model: str
    kind: Kind
    expected_turns: int | None
    wait_s: float


class Renew(Message, frozen=True, tag=8):
    tickets: list[Ticket]


class Abandon(Message, frozen=True, tag=9):
    """Ends a turn, or the wait for one, without a trace. Idempotent, never an error."""

    tenant: Tenant
    context_id: ContextId
    nonce: int


class Commit(Message, frozen=True, tag=10):
    """Durable once answered. Again with the same ticket: the answer of the first time."""

    ticket: Ticket
    result: TurnResult


class Claims(Message, frozen=True, tag=11):
    """Which of these hashes, packed u64, contexts of the model claim; asked by KV stores."""

    model: str
    hashes: bytes


Operation = Create | Get | Page | Patch | Fork | Delete | Begin | Renew | Abandon | Commit | Claims


class Viewed(Message, frozen=True, tag=1):
    view: ContextView


class Paged(Message, frozen=True, tag=2):
    page: ContextPage


class Begun(Message, frozen=True, tag=3):
    turn: OpenTurn


class Done(Message, frozen=True, tag=4):
    pass


class Renewed(Message, frozen=True, tag=5):
    """Nonces of turns that were not there to be renewed: their leases have lapsed."""

    lost: list[int]


class Failed(Message, frozen=True, tag=6):
    """A domain error by its class's name; see `router.contexts.faults`."""

    error: str
    message: str
    param: str | None = None
    code: str | None = None
    retry_after_s: int = 1


class Claimed(Message, frozen=True, tag=7):
    """`marks` has a byte for each hash, 1 where it is claimed. What was saved in the last
    `oldest_turn_s` seconds may be of a turn that is still open."""

    marks: bytes
    oldest_turn_s: float


Reply = Viewed | Paged | Begun | Done | Renewed | Failed | Claimed


class Flight(Message, frozen=True):
    """Operations of one caller, each answered by itself, in their order."""

    operations: list[Operation]


class Landing(Message, frozen=True):
    """Without replies all is to be sent again: to `successor`, the actor that took over, or here
    a little later, because of `refusal`. Operations are idempotent, some may have been applied.
    """

    replies: list[Reply]
    successor: str | None = None
    refusal: str | None = None


def encode(message: Message) -> bytes:
    return _ENCODER.encode(message)


def decode_flight(payload: bytes) -> Flight:
    """Raises `msgspec.MsgspecError` on anything else."""
    return _FLIGHT.decode(payload)


def decode_landing(payload: bytes) -> Landing:
    return _LANDING.decode(payload)


_ENCODER = msgspec.msgpack.Encoder()
_FLIGHT = msgspec.msgpack.Decoder(Flight)
_LANDING = msgspec.msgpack.Decoder(Landing)
