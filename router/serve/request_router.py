"""Serve's hook for choosing a replica: follows the decision that a request brings along.

Serve pickles this module by value into every process with a handle, so it holds no state. What it
learns goes to the process's switchboard, named through its module: a copy would reach nobody.
"""

import random

from ray.serve._private.common import ReplicaID
from ray.serve.request_router import (
    PendingRequest,
    ReplicaResult,
    RequestRouter,
    RunningReplica,
)

from router.core.types import ReplicaId
from router.serve import switchboard
from router.serve.switchboard import DeploymentKey, DirectedRequest, Directions, Member

PROBED_AT_ONCE = 2


class DecisionRouter(RequestRouter):
    """Ranks replicas as decided, then all others; a request without a decision goes by load.

    Rejections, retries on dead replicas, back-pressure and cancellation stay Serve's.
    """

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        super().update_replicas(replicas)
        self._report_members()

    def on_replica_actor_died(self, replica_id: ReplicaID) -> None:
        super().on_replica_actor_died(replica_id)
        self._report_members()

    async def choose_replicas(
        self,
        candidate_replicas: list[RunningReplica],
        pending_request: PendingRequest | None = None,
    ) -> list[list[RunningReplica]]:
        """One rank for each replica of the decision, a last one for the others, in any order."""
        if pending_request is not None:
            pending_request.routing_context.should_backoff = True
        directions = directions_of(pending_request)
        ranked = directions.ranked if directions is not None else ()
        by_id = {ReplicaId(r.replica_id.unique_id): r for r in candidate_replicas}
        chosen = [by_id.pop(replica_id) for replica_id in ranked if replica_id in by_id]
        others = random.sample(list(by_id.values()), len(by_id))
        return [*([replica] for replica in chosen), others]

    async def _choose_replica_for_request(
        self, pending_request: PendingRequest, *, is_retry: bool = False
    ) -> RunningReplica:
        """Decides for this very request, in its caller's task.

        Serve's own way looks a waiting request up by an id that all calls of one HTTP request
        share: of two that wait at once, one would never be answered.
        """
        attempt = 0
        while True:
            while not self._replicas:
                self._replicas_updated_event.clear()
                await self._replicas_updated_event.wait()
            ranks = await self.choose_replicas(self._replicas_list, pending_request)
            replica = self._first_free(ranks, is_known=is_retry) or await self._probed(attempt)
            if replica is not None:
                await self._redirect(pending_request, replica)
                self._record_queue_wait_time(pending_request)
                return replica
            await self._backoff(attempt)
            attempt += 1

    async def _redirect(self, pending_request: PendingRequest, replica: RunningReplica) -> None:
        """What a request brings along is right for the first of its ranks only."""
        directions = directions_of(pending_request)
        listener = switchboard.SWITCHBOARD.listener(self._key())
        replica_id = ReplicaId(replica.replica_id.unique_id)
        if directions is None or listener is None or directions.ranked[:1] == (replica_id,):
            return
        request = await listener.redirect(directions.booking_id, replica_id)
        if request is not None:
            pending_request.args[0] = request

    def _first_free(
        self, ranks: list[list[RunningReplica]], *, is_known: bool
    ) -> RunningReplica | None:
        """The best replica that is not known to be full, the less loaded of two without a decision.

        One whose queue is not known may refuse, which costs less than asking beforehand. On a
        retry, `is_known`, it must be known: the best one may have become unreachable.
        """
        *chosen, others = ranks
        for (replica,) in chosen:
            if self._is_free(replica, is_known):
                return replica
        free = [replica for replica in others if self._is_free(replica, is_known)]
        lengths = self._replica_queue_len_cache
        return min(
            free[:PROBED_AT_ONCE],
            key=lambda replica: lengths.get(replica.replica_id) or 0,
            default=None,
        )

    def _is_free(self, replica: RunningReplica, is_known: bool) -> bool:
        queue_len = self._replica_queue_len_cache.get(replica.replica_id)
        if queue_len is None:
            return not is_known
        return bool(queue_len < replica.max_ongoing_requests)

    async def _probed(self, attempt: int) -> RunningReplica | None:
        """Asks a few replicas whether they are still full: what waits must not ask all of them."""
        few = random.sample(self._replicas_list, min(PROBED_AT_ONCE, len(self._replicas_list)))
        return await self._select_from_candidate_replicas(few, attempt)

    def on_request_routed(
        self, pending_request: PendingRequest, replica_id: ReplicaID, result: ReplicaResult
    ) -> None:
        directions = directions_of(pending_request)
        listener = switchboard.SWITCHBOARD.listener(self._key())
        if directions is None or listener is None:
            return
        booking_id = directions.booking_id
        listener.on_routed(booking_id, ReplicaId(replica_id.unique_id))
        result.add_done_callback(lambda _: listener.on_completed(booking_id))

    def _report_members(self) -> None:
        members = [
            Member(ReplicaId(replica.replica_id.unique_id), block_size_of(replica))
            for replica in self._replicas_list
        ]
        switchboard.SWITCHBOARD.report_members(self._key(), members)

    def _key(self) -> DeploymentKey:
        return DeploymentKey(self._deployment_id.app_name, self._deployment_id.name)


def directions_of(pending_request: PendingRequest | None) -> Directions | None:
    """None for a call that nobody decided on, such as an administrative one."""
    if pending_request is None or not pending_request.args:
        return None
    request = pending_request.args[0]
    return request.routing if isinstance(request, DirectedRequest) else None


def block_size_of(replica: RunningReplica) -> int | None:
    """What the replica says of its engine; see `replicas.engines.protocol.EngineInfo`."""
    block_size = replica.replica_metadata.get("block_size")
    return block_size if isinstance(block_size, int) else None
