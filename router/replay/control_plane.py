"""The product's own decision path, whole: index, ledger, selector and policies, on given time.

Pure. Nothing here stands in for them; a replay tells what they would have decided.
"""

from collections.abc import Callable, Sequence
from random import Random

from router.core.events import EventBatch
from router.core.index import BlockIndex
from router.core.ledger import LoadLedger
from router.core.types import BookingId, Tenant
from router.decision import Decision, SelectRequest
from router.policies.base import Hints
from router.policies.registry import PolicySpec, make_policy
from router.replay.fleet import Members, Replica
from router.replay.plan import ReplayPlan
from router.replay.trace import TraceRequest
from router.selector import Selector

_LEASE_S = 1e9
"""Whatever ends here is heard of."""
_SWEEP_EVERY_S = 0.25
_SPARE_BLOCKS = 65_536


class ControlPlane:
    """Raises `ConfigurationError` for a policy that cannot be."""

    def __init__(self, plan: ReplayPlan) -> None:
        make_policy(plan.policy, policies=plan.policies)
        self.policy: PolicySpec = plan.policy
        self.members = Members(plan.max_replicas)
        max_blocks = plan.max_replicas * plan.fleet.blocks + _SPARE_BLOCKS
        self.index = BlockIndex(max_blocks, plan.max_replicas)
        self.ledger = LoadLedger(plan.max_replicas)
        self.selector = Selector(
            self.index,
            self.ledger,
            self.members,
            Random(plan.seed),
            speculative_ttl_s=plan.speculative_ttl_s,
            policies=plan.policies,
        )
        self._block_size = plan.fleet.block_size
        self._cache_tokens = plan.fleet.blocks * plan.fleet.block_size
        self._next_sweep_s = 0.0

    def join(self, replica: Replica, now: float) -> None:
        replica.slot = self.index.register(replica.replica_id, replica.incarnation)
        self.ledger.recent.join(replica.slot, now)
        self.ledger.room.set_size(replica.slot, self._cache_tokens)
        self.members.add(replica)

    def leave(self, replica: Replica) -> None:
        self.selector.forget(replica.replica_id, replica.slot)
        self.members.remove(replica)

    def select(
        self, asked: Sequence[tuple[BookingId, TraceRequest, Replica | None]], now: float
    ) -> list[Replica | None]:
        """A replica for each request, not the one that it has just been lost on."""
        self._sweep(now)
        requests = [self._request(*each) for each in asked]
        return [
            self.members.get(outcome.replica_id) if isinstance(outcome, Decision) else None
            for outcome in self.selector.select(requests, now)
        ]

    def first_token(self, booking_id: BookingId, now: float) -> None:
        self.selector.first_token(booking_id, now)

    def settle(self, booking_id: BookingId, now: float) -> None:
        self.selector.settle(booking_id)

    def hear(self, batch: EventBatch) -> None:
        self.index.apply(batch)

    def _request(
        self, booking_id: BookingId, request: TraceRequest, lost_on: Replica | None
    ) -> SelectRequest:
        return SelectRequest(
            booking_id,
            Tenant(""),
            request.hashes,
            request.prompt_tokens,
            self._block_size,
            float("inf"),
            _LEASE_S,
            self.policy,
            excluded=() if lost_on is None else (lost_on.replica_id,),
            hints=Hints(request.output_tokens, request.session),
        )

    def _sweep(self, now: float) -> None:
        """As the live index's timer does."""
        if now >= self._next_sweep_s:
            self.selector.sweep(now)
            self._next_sweep_s = now + _SWEEP_EVERY_S


class ControlPlanes:
    """What all of them hear of: each replica has the same slot in each, as all hear it in order."""

    def __init__(self, planes: Sequence[ControlPlane]) -> None:
        self._planes = planes
        self.members = planes[0].members

    def join(self, replica: Replica, now: float) -> None:
        for plane in self._planes:
            plane.join(replica, now)

    def leave(self, replica: Replica) -> None:
        for plane in self._planes:
            plane.leave(replica)

    def hear(self, batch: EventBatch) -> None:
        for plane in self._planes:
            plane.hear(batch)


News = Callable[[BookingId, float], None]
