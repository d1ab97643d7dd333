"""The write path inside the actor: replicas register, renew, report and go. Pure: no Ray.

A replica that registered is a candidate at once, by its load; what it holds counts from its
snapshot on.
"""

from router.core.errors import RegistrationRefused
from router.core.events import EventBatch, SnapshotChunk
from router.core.index import BlockIndex
from router.core.ledger import LoadLedger
from router.core.streams import ApplyResult, Outcome
from router.core.types import Incarnation, ReplicaId
from router.selector import Selector
from router.serve.leases import Lease, ReplicaLeases
from router.serve.wire import MAX_BATCH_BLOCKS, Receipt, Registration, Verdict


class EventDesk:
    """Keeps leases, index and ledger in step about who there is."""

    def __init__(
        self,
        index: BlockIndex,
        selector: Selector,
        leases: ReplicaLeases,
        ledger: LoadLedger,
        incarnation: Incarnation,
    ) -> None:
        self._index = index
        self._selector = selector
        self._leases = leases
        self._ledger = ledger
        self._incarnation = incarnation
        self._refilling: set[ReplicaId] = set()

    @property
    def refilling(self) -> int:
        """Registered replicas whose snapshot is still to come."""
        return len(self._refilling)

    def register(self, registration: Registration, now: float) -> Receipt:
        """Idempotent. A later life of a replica ends the one before, with all it held."""
        replica_id = ReplicaId(registration.replica_id)
        incarnation = Incarnation(registration.incarnation)
        if not self._leases.accepts(replica_id, incarnation):
            return self._receipt(Verdict.REINCARNATE)
        if self._leases.renew(replica_id, incarnation, now):
            self._note_traits(registration)
            return self._receipt(Verdict.ACCEPTED)
        self._end(replica_id)
        try:
            slot = self._index.register(replica_id, incarnation)
        except RegistrationRefused:
            return self._receipt(Verdict.FULL)
        self._leases.add(Lease(replica_id, incarnation, slot), now)
        self._ledger.recent.join(slot, now)
        self._note_traits(registration)
        self._refilling.add(replica_id)
        return self._receipt(Verdict.ACCEPTED)

    def apply(self, batch: EventBatch, now: float) -> Receipt:
        """Whatever comes from the registered life renews its lease, however it is judged."""
        refusal = self._refusal(batch.replica_id, batch.incarnation, batch.blocks, now)
        if refusal is not None:
            return self._receipt(refusal)
        result = self._index.apply(batch)
        if result.outcome is Outcome.APPLIED:
            self._refilling.discard(batch.replica_id)
        return self._receipt(_verdict(result))

    def snapshot(self, chunk: SnapshotChunk, now: float) -> Receipt:
        """One part; the last one makes the replica's blocks known."""
        refusal = self._refusal(chunk.replica_id, chunk.incarnation, chunk.blocks, now)
        if refusal is not None:
            return self._receipt(refusal)
        result = self._index.load_snapshot(chunk)
        if chunk.is_last and result.outcome is Outcome.APPLIED:
            self._refilling.discard(chunk.replica_id)
        return self._receipt(_verdict(result))

    def forget(self, registration: Registration) -> Receipt:
        """The replica says good-bye: what arrives late from this life is refused."""
        replica_id = ReplicaId(registration.replica_id)
        lease = self._leases.get(replica_id)
        if lease is None or lease.incarnation != registration.incarnation:
            return self._receipt(Verdict.REGISTER)
        self._end(replica_id)
        return self._receipt(Verdict.ACCEPTED)

    def sweep(self, now: float) -> None:
        """Forgets replicas that have been silent for too long. O(replicas)."""
        for replica_id in self._leases.lapsed(now):
            self._end(replica_id)

    def _note_traits(self, registration: Registration) -> None:
        """Also of a life that is known: it may have measured anew, and who took it over from
        another index did not hear of it."""
        lease = self._leases.get(ReplicaId(registration.replica_id))
        if lease is None:
            return
        if registration.cache_tokens is not None:
            self._ledger.room.set_size(lease.slot, registration.cache_tokens)
        if registration.store_id is not None:
            self._ledger.stores.set(lease.slot, registration.store_id, registration.load_line)

    def _refusal(
        self, replica_id: ReplicaId, incarnation: Incarnation, blocks: int, now: float
    ) -> Verdict | None:
        if not self._leases.renew(replica_id, incarnation, now):
            is_live = self._leases.accepts(replica_id, incarnation)
            return Verdict.REGISTER if is_live else Verdict.REINCARNATE
        return Verdict.TOO_LARGE if blocks > MAX_BATCH_BLOCKS else None

    def _end(self, replica_id: ReplicaId) -> None:
        lease = self._leases.end(replica_id)
        if lease is not None:
            self._selector.forget(replica_id, lease.slot)
            self._refilling.discard(replica_id)

    def _receipt(self, verdict: Verdict) -> Receipt:
        return Receipt(self._incarnation, verdict)


def _verdict(result: ApplyResult) -> Verdict:
    if result.outcome is Outcome.UNKNOWN_REPLICA:
        return Verdict.REGISTER
    if result.outcome is Outcome.STALE_INCARNATION:
        return Verdict.REINCARNATE
    return Verdict.WANTS_SNAPSHOT if result.wants_snapshot else Verdict.ACCEPTED
