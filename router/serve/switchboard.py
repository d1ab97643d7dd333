"""Where Serve's request router and the ingress of the same process find each other.

Serve makes the router from a pickled class, in a thread of its own, and hands it nothing of ours:
this module is the one thing that both can import. It holds who listens, and nothing else of either.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Protocol, runtime_checkable

from router.core.types import BookingId, ReplicaId


class Directions(Protocol):
    """What the router needs of a request's routing."""

    @property
    def booking_id(self) -> BookingId: ...

    @property
    def ranked(self) -> tuple[ReplicaId, ...]: ...


@runtime_checkable
class DirectedRequest(Protocol):
    """The first argument of a call that was decided on."""

    @property
    def routing(self) -> Directions | None: ...


@dataclass(frozen=True, slots=True)
class Member:
    """A replica that Serve would send to; `block_size` in tokens, None where it has not said."""

    replica_id: ReplicaId
    block_size: int | None


class Listener(Protocol):
    """The ingress's side of one deployment. Called in the router's thread; `on_…` must not wait."""

    def on_members(self, members: Sequence[Member]) -> None:
        """All replicas that Serve would send to from here on."""
        ...

    async def redirect(
        self, booking_id: BookingId, replica_id: ReplicaId
    ) -> DirectedRequest | None:
        """The request as it is to go to this replica, which is not the one that was decided on.

        None where there is nothing to change. On any loop; takes no longer than a decision.
        """
        ...

    def on_routed(self, booking_id: BookingId, replica_id: ReplicaId) -> None:
        """A replica has accepted the request."""
        ...

    def on_completed(self, booking_id: BookingId) -> None:
        """The call has ended at the replica, however; its answer may still be on the way."""
        ...


@dataclass(frozen=True, slots=True)
class DeploymentKey:
    application: str
    deployment: str


class Switchboard:
    """One listener for each deployment that this process calls. Safe from any thread."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._listeners: dict[DeploymentKey, Listener] = {}
        self._members: dict[DeploymentKey, tuple[Member, ...]] = {}

    def connect(self, key: DeploymentKey, listener: Listener) -> None:
        """Replaces any other; hears at once of the members that are known."""
        with self._lock:
            self._listeners[key] = listener
            if key in self._members:
                listener.on_members(self._members[key])

    def listener(self, key: DeploymentKey) -> Listener | None:
        return self._listeners.get(key)

    def report_members(self, key: DeploymentKey, members: Sequence[Member]) -> None:
        with self._lock:
            self._members[key] = tuple(members)
            listener = self._listeners.get(key)
            if listener is not None:
                listener.on_members(members)


SWITCHBOARD = Switchboard()
"""The process's own. Bounded by the deployments that the process has handles of."""
