"""One conversation at one moment, as a value; what changes is which value the table holds."""

from dataclasses import dataclass, replace
from typing import NamedTuple

from router.contexts.history import Segment
from router.contexts.messages import ContextView, Kind, Usage
from router.core.types import ContextId, ReplicaId, Tenant


class Moment(NamedTuple):
    """One instant on both clocks: `monotonic` measures inside a process, `wall` across lives."""

    monotonic: float
    wall: float

    def wall_at(self, monotonic: float) -> float:
        return self.wall + (monotonic - self.monotonic)


class Turn(NamedTuple):
    """The turn under way; it ends uncommitted at `lease_until`, monotonic."""

    nonce: int
    lease_until: float


@dataclass(frozen=True, slots=True)
class Context:
    """`idle_until` is monotonic and means something only without a turn; other times are wall.

    `last_nonce` is that of the turn committed last: asked again, its commit is answered again.
    `claims` are hashes, see `claims`.
    """

    context_id: ContextId
    tenant: Tenant
    model: str
    kind: Kind
    history: Segment
    created_at: float
    last_used_at: float
    idle_until: float
    expires_at: float
    ttl_s: int
    metadata: dict[str, str]
    usage: Usage
    turns: int = 0
    replica_id: ReplicaId | None = None
    last_nonce: int | None = None
    turn: Turn | None = None
    claims: bytes = b""

    @property
    def tokens(self) -> int:
        return self.history.tokens

    def view(self) -> ContextView:
        return ContextView(
            self.context_id,
            self.kind,
            self.model,
            int(self.created_at),
            int(self.last_used_at),
            None if self.turn is not None else int(self.expires_at),
            self.ttl_s,
            self.turns,
            self.tokens,
            self.metadata,
            self.usage,
            claims=self.claims,
        )


def used(context: Context, now: Moment) -> Context:
    """With its idle clock started again."""
    return replace(
        context,
        last_used_at=now.wall,
        idle_until=now.monotonic + context.ttl_s,
        expires_at=now.wall + context.ttl_s,
    )


def has_expired(context: Context, now: Moment) -> bool:
    """To the instant, whenever a timer comes to remove it. Never during a turn."""
    return context.turn is None and context.idle_until <= now.monotonic
