"""Which replicas may be chosen: those that renewed their lease. Pure: the time is an argument.

A replica that stays silent is first no candidate, then forgotten; what arrives late from a
forgotten life is refused.
"""

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from router.core.types import Incarnation, ReplicaId, Slot

_MAX_TOMBSTONES = 4096
_PROOF_OF_LIFE_S = 2.0
"""What a doubted replica has left: a living one renews twice in that time."""


@dataclass(frozen=True, slots=True)
class Lease:
    """One registered life of a replica and its column in the arrays."""

    replica_id: ReplicaId
    incarnation: Incarnation
    slot: Slot


class ReplicaLeases:
    """Leases by replica, with the time of renewal in an array by slot.

    `version` changes whenever the set of registered replicas does.
    """

    def __init__(self, max_replicas: int, stale_after_s: float, forget_after_s: float) -> None:
        self.stale_after_s = stale_after_s
        self.forget_after_s = forget_after_s
        self.version = 0
        self._leases: dict[ReplicaId, Lease] = {}
        self._renewed_at = np.full(max_replicas, -np.inf)
        self._ended: OrderedDict[ReplicaId, Incarnation] = OrderedDict()

    def __len__(self) -> int:
        return len(self._leases)

    def accepts(self, replica_id: ReplicaId, incarnation: Incarnation) -> bool:
        """False for a life that has ended, and for one older than the registered."""
        lease = self._leases.get(replica_id)
        if lease is not None and incarnation < lease.incarnation:
            return False
        ended = self._ended.get(replica_id)
        return ended is None or incarnation > ended

    def get(self, replica_id: ReplicaId) -> Lease | None:
        return self._leases.get(replica_id)

    def add(self, lease: Lease, now: float) -> None:
        self._leases[lease.replica_id] = lease
        self._renewed_at[lease.slot] = now
        self.version += 1

    def renew(self, replica_id: ReplicaId, incarnation: Incarnation, now: float) -> bool:
        """False where this life is not registered: it must register and send a snapshot."""
        lease = self._leases.get(replica_id)
        if lease is None or lease.incarnation != incarnation:
            return False
        self._renewed_at[lease.slot] = now
        return True

    def doubt(self, replica_ids: Iterable[ReplicaId], now: float) -> None:
        """Somebody saw these go: no candidates from here on, and soon forgotten.

        One that lives says so itself with its next batch, and is whole again.
        """
        renewed_at = now - max(self.stale_after_s, self.forget_after_s - _PROOF_OF_LIFE_S)
        for lease in filter(None, map(self._leases.get, replica_ids)):
            self._renewed_at[lease.slot] = min(self._renewed_at[lease.slot], renewed_at)

    def end(self, replica_id: ReplicaId) -> Lease | None:
        """Removes the replica and refuses this life from here on."""
        lease = self._leases.pop(replica_id, None)
        if lease is None:
            return None
        self._renewed_at[lease.slot] = -np.inf
        self._ended[replica_id] = lease.incarnation
        self._ended.move_to_end(replica_id)
        if len(self._ended) > _MAX_TOMBSTONES:
            self._ended.popitem(last=False)
        self.version += 1
        return lease

    def fresh(self, now: float) -> NDArray[np.bool_]:
        """By slot: whether the lease was renewed recently enough to be a candidate."""
        is_fresh: NDArray[np.bool_] = self._renewed_at > now - self.stale_after_s
        return is_fresh

    def lapsed(self, now: float) -> list[ReplicaId]:
        """Replicas silent for so long that they are to be forgotten. O(replicas)."""
        limit = now - self.forget_after_s
        return [r for r, lease in self._leases.items() if self._renewed_at[lease.slot] <= limit]

    def members(self, now: float) -> list[ReplicaId]:
        """Candidates by name. O(replicas)."""
        is_fresh = self.fresh(now)
        return [r for r, lease in self._leases.items() if is_fresh[lease.slot]]

    def leases(self) -> list[Lease]:
        return list(self._leases.values())
