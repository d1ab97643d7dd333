"""From one request and its overlaps to a decision, through the request's policy. Pure.

Neither looks up nor books: that is the selector's.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

import numpy as np
from numpy.typing import NDArray

from router.candidates import Directory
from router.core.ledger import LoadLedger
from router.core.types import ReplicaId, Tier
from router.decision import Decision, SelectRequest
from router.explanations import Record
from router.joint_overlap import JointOverlap
from router.policies.base import Facts, Reason, RoutingPolicy
from router.policies.registry import PolicySpec, make_policy

_GPU = int(Tier.GPU)


@dataclass(slots=True)
class _Seat:
    """A policy in use, and how many choices it has made."""

    policy: RoutingPolicy
    turn: int = 0


class Chooser:
    """Policies in use, the least recently used leaving past `max_policies`, and their chance."""

    def __init__(
        self,
        ledger: LoadLedger,
        rng: Random,
        applied_seq: Callable[[ReplicaId], int | None],
        *,
        max_alternatives: int,
        max_policies: int,
    ) -> None:
        self._applied_seq = applied_seq
        self._ledger = ledger
        self._rng = rng
        self._max_alternatives = max_alternatives
        self._max_policies = max_policies
        self._seats: OrderedDict[PolicySpec, _Seat] = OrderedDict()

    def choose(
        self,
        request: SelectRequest,
        overlap: JointOverlap,
        slots: NDArray[np.int64],
        directory: Directory,
        now: float,
    ) -> Record:
        """Among the candidates `slots` [n >= 1]. O(n log n).

        Raises `ConfigurationError` for a policy that cannot be.
        """
        seat = self._seat(request.policy)
        facts = self._facts(request, overlap, slots, seat.turn, now)
        seat.turn += 1
        choice = seat.policy.choose(facts, self._rng)
        best = choice.ranked[: self._max_alternatives].tolist()
        ranked = tuple([directory.names[slot] for slot in best])
        seq = self._applied_seq(ranked[0])
        decision = _decision(request, overlap, best[0], ranked, choice.reason, seq)
        return Record(decision, request.tenant, request.policy, facts, choice, directory)

    def _seat(self, spec: PolicySpec) -> _Seat:
        seat = self._seats.get(spec)
        if seat is not None:
            self._seats.move_to_end(spec)
            return seat
        seat = self._seats[spec] = _Seat(make_policy(spec))
        if len(self._seats) > self._max_policies:
            self._seats.popitem(last=False)
        return seat

    def _facts(
        self,
        request: SelectRequest,
        overlap: JointOverlap,
        slots: NDArray[np.int64],
        turn: int,
        now: float,
    ) -> Facts:
        tiers = overlap.tiers.take(slots, axis=1)
        speculative = overlap.speculative.take(slots)
        if not request.reads_cache:
            tiers, speculative = np.zeros_like(tiers), np.zeros_like(speculative)
        return Facts(
            slots,
            tiers,
            speculative,
            self._ledger.loads_at(now).take(slots, axis=1),
            request.prompt_tokens,
            request.block_size,
            turn,
            request.hints,
        )


def _decision(
    request: SelectRequest,
    overlap: JointOverlap,
    slot: int,
    ranked: tuple[ReplicaId, ...],
    reason: Reason,
    decided_seq: int | None,
) -> Decision:
    confirmed, _, stored = overlap.tiers[:, slot].tolist()
    speculative = overlap.speculative.item(slot)
    reusable = max(request.prompt_tokens - 1, 0) // request.block_size
    if not request.reads_cache:
        reusable = 0
    held = min(max(speculative, stored), reusable)
    return Decision(
        booking_id=request.booking_id,
        replica_id=ranked[0],
        ranked=ranked,
        overlap_blocks=confirmed,
        speculative_blocks=speculative,
        load_blocks=(),
        forecast_blocks=min(confirmed, reusable),
        uncached_tokens=request.prompt_tokens - held * request.block_size,
        reason=reason,
        chain_overlaps=tuple([part.tiers.item(_GPU, slot) for part in overlap.parts]),
        decided_seq=decided_seq,
    )
