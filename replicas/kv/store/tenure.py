"""How long a store is needed: while a replica of its node has a lease, and a while after. Pure."""

from router.core.types import ReplicaId


class Tenure:
    """Times are monotonic. At most one lease for each replica; it ends by itself."""

    def __init__(self, lease_s: float, linger_s: float, now: float) -> None:
        self._lease_s = lease_s
        self._linger_s = linger_s
        self._lapses_at: dict[ReplicaId, float] = {}
        self._needed_at = now

    def __len__(self) -> int:
        return len(self._lapses_at)

    def renew(self, replica_id: ReplicaId, now: float) -> None:
        self._lapses_at[replica_id] = now + self._lease_s

    def end(self, replica_id: ReplicaId, now: float) -> None:
        """The replica takes its leave. Idempotent."""
        if self._lapses_at.pop(replica_id, None) is not None:
            self._needed_at = max(self._needed_at, now)

    def is_over(self, now: float) -> bool:
        """Nobody has needed the store for so long that it may end. O(replicas)."""
        for replica_id, lapses_at in list(self._lapses_at.items()):
            if lapses_at <= now:
                self.end(replica_id, lapses_at)
        return not self._lapses_at and now >= self._needed_at + self._linger_s
