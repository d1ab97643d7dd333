"""Which replicas a request may go to, as slots. Pure."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from router.core.types import ReplicaId, Slot
from router.decision import SelectRequest


class Lease(Protocol):
    """A registered replica and its column."""

    @property
    def replica_id(self) -> ReplicaId: ...

    @property
    def slot(self) -> Slot: ...


class Members(Protocol):
    """Who is registered, and whose lease is alive. `version` changes with the former."""

    @property
    def version(self) -> int: ...

    def leases(self) -> Sequence[Lease]: ...

    def fresh(self, now: float) -> NDArray[np.bool_]:
        """By slot [max_replicas]: whether the lease is alive; false where nobody is registered."""
        ...


class Directory:
    """Names and slots of one version of the membership. Immutable."""

    def __init__(self, leases: Sequence[Lease]) -> None:
        self.slots = {lease.replica_id: lease.slot for lease in leases}
        self.names: dict[int, ReplicaId] = {lease.slot: lease.replica_id for lease in leases}


class Candidates:
    """The membership at one moment; memoises what requests of one batch have in common."""

    def __init__(self, directory: Directory, is_alive: NDArray[np.bool_]) -> None:
        self.directory = directory
        self._is_alive = is_alive
        self._alive_slots: NDArray[np.int64] = np.flatnonzero(is_alive).astype(np.int64)
        self._memo: dict[
            tuple[tuple[ReplicaId, ...] | None, tuple[ReplicaId, ...]], NDArray[np.int64]
        ] = {(None, ()): self._alive_slots}

    def slots_for(self, request: SelectRequest) -> NDArray[np.int64]:
        """Ascending. Alive, in the request's own set where it has one, and not excluded."""
        key = (request.candidates, request.excluded)
        slots = self._memo.get(key)
        if slots is None:
            slots = self._memo[key] = self._narrowed(*key)
        return slots

    def _narrowed(
        self, wanted: tuple[ReplicaId, ...] | None, excluded: tuple[ReplicaId, ...]
    ) -> NDArray[np.int64]:
        is_candidate = self._is_alive.copy()
        if wanted is not None:
            is_candidate[:] = False
            is_candidate[self._known(wanted)] = True
            is_candidate &= self._is_alive
        is_candidate[self._known(excluded)] = False
        return np.flatnonzero(is_candidate).astype(np.int64)

    def _known(self, replica_ids: tuple[ReplicaId, ...]) -> list[Slot]:
        slots = self.directory.slots
        return [slots[replica_id] for replica_id in replica_ids if replica_id in slots]


class Roster:
    """Opens the membership for a batch; rebuilds names only when who is registered changed."""

    def __init__(self, members: Members) -> None:
        self._members = members
        self._version: int | None = None
        self._directory = Directory(())

    def directory(self) -> Directory:
        if self._version != self._members.version:
            self._directory = Directory(self._members.leases())
            self._version = self._members.version
        return self._directory

    def at(self, now: float) -> Candidates:
        return Candidates(self.directory(), self._members.fresh(now))
