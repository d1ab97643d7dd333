"""Which replicas a request may go to, as slots. Pure."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest

from router.core.types import ReplicaId, Slot
from router.decision import SelectRequest

_Names = tuple[ReplicaId, ...]

_MAX_MEMO = 256


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
    """Names and slots of one version of the membership. Immutable.

    `keys` uint64, by slot: digests of the names.
    """

    def __init__(self, leases: Sequence[Lease]) -> None:
        self.slots = {lease.replica_id: lease.slot for lease in leases}
        self.names: dict[int, ReplicaId] = {lease.slot: lease.replica_id for lease in leases}
        self.keys: NDArray[np.uint64] = np.zeros(max(self.names, default=-1) + 1, np.uint64)
        for slot, name in self.names.items():
            self.keys[slot] = xxh3_64_intdigest(name.encode())


class Candidates:
    """The membership at one moment; memoises what its requests have in common."""

    def __init__(self, directory: Directory, is_alive: NDArray[np.bool_]) -> None:
        self.directory = directory
        self._is_alive = is_alive
        self._alive_slots: NDArray[np.int64] = np.flatnonzero(is_alive).astype(np.int64)
        self._memo: dict[tuple[_Names | None, _Names], NDArray[np.int64]] = {}

    def slots_for(self, request: SelectRequest) -> NDArray[np.int64]:
        """Ascending. Alive, in the request's own set where it has one, and not excluded."""
        if request.candidates is None and not request.excluded:
            return self._alive_slots
        key = (request.candidates, request.excluded)
        slots = self._memo.get(key)
        if slots is None:
            if len(self._memo) >= _MAX_MEMO:
                self._memo.clear()
            slots = self._memo[key] = self._narrowed(*key)
        return slots

    def _narrowed(self, wanted: _Names | None, excluded: _Names) -> NDArray[np.int64]:
        is_candidate = self._is_alive.copy()
        if wanted is not None:
            is_candidate[:] = False
            is_candidate[self._known(wanted)] = True
            is_candidate &= self._is_alive
        is_candidate[self._known(excluded)] = False
        return np.flatnonzero(is_candidate).astype(np.int64)

    def _known(self, replica_ids: _Names) -> list[Slot]:
        slots = self.directory.slots
        return [slots[replica_id] for replica_id in replica_ids if replica_id in slots]


class Roster:
    """Opens the membership for a batch; rebuilds only what has changed since the one before."""

    def __init__(self, members: Members) -> None:
        self._members = members
        self._version: int | None = None
        self._directory = Directory(())
        self._candidates = Candidates(self._directory, np.zeros(0, np.bool_))
        self._alive_bytes = b""

    def directory(self) -> Directory:
        if self._version != self._members.version:
            self._directory = Directory(self._members.leases())
            self._version = self._members.version
        return self._directory

    def at(self, now: float) -> Candidates:
        directory, is_alive = self.directory(), self._members.fresh(now)
        alive_bytes = is_alive.tobytes()
        if alive_bytes != self._alive_bytes or self._candidates.directory is not directory:
            self._candidates = Candidates(directory, is_alive)
            self._alive_bytes = alive_bytes
        return self._candidates
