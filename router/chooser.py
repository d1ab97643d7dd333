"""From one request and its overlaps to a decision, through the request's policy. Pure.

Neither looks up nor books: that is the selector's.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import TypeVar

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from router.candidates import Directory
from router.core.ledger import LoadLedger
from router.core.routing_history import RoutingHistory
from router.core.types import ReplicaId, Slot, Tier
from router.decision import Decision, SelectRequest
from router.explanations import Record
from router.joint_overlap import JointOverlap
from router.loads import LoadOffer, load_offer, seen_blocks
from router.policies.base import NO_DEPTHS, NO_FIGURES, NO_KEYS, Facts, Reason, RoutingPolicy
from router.policies.registry import POLICIES, PolicySpec, Registration, make_policy

N = TypeVar("N", np.int32, np.uint64, np.float64)

_GPU = int(Tier.GPU)


@dataclass(slots=True)
class _Seat:
    """A policy in use, how many choices it has made, and where it sent what if it wants to know."""

    policy: RoutingPolicy
    history: RoutingHistory | None
    turn: int = 0


class Chooser:
    """Policies in use, the least recently used leaving past `max_policies`, and their chance.

    `policies` are those that can be asked for, by name.
    """

    def __init__(
        self,
        ledger: LoadLedger,
        rng: Random,
        applied_seq: Callable[[ReplicaId], int | None],
        *,
        max_alternatives: int,
        max_policies: int,
        policies: Mapping[str, Registration] = POLICIES,
    ) -> None:
        self._policies = policies
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
        facts = self._facts(request, overlap, slots, directory, seat, now)
        offer = None
        if overlap.stored and self._ledger.stores.is_used:
            offer = load_offer(overlap.stored, facts, self._ledger.stores)
            facts = replace(facts, tiers=offer.tiers, load_shares=offer.shares)
        seat.turn += 1
        choice = seat.policy.choose(facts, self._rng)
        if seat.history is not None:
            seat.history.record(Slot(choice.ranked.item(0)), facts.hashes, now)
        best = choice.ranked[: self._max_alternatives].tolist()
        ranked = tuple([directory.names[slot] for slot in best])
        seq = self._applied_seq(ranked[0])
        sent = _sent(facts, best[0])
        decision = _decision(request, overlap, best[0], ranked, choice.reason, seq, sent)
        if self._ledger.stores.is_used and not request.chains:
            decision = self._with_store(decision, overlap, facts, offer, best[0])
        # Records are kept, and a chain would keep its whole message.
        facts = replace(facts, hashes=NO_KEYS)
        return Record(decision, request.tenant, request.policy, facts, choice, directory)

    def forget(self, slot: Slot) -> None:
        """The replica is gone: what was sent there counts no longer."""
        for seat in self._seats.values():
            if seat.history is not None:
                seat.history.forget(slot)

    def _with_store(
        self,
        decision: Decision,
        overlap: JointOverlap,
        facts: Facts,
        offer: LoadOffer | None,
        slot: int,
    ) -> Decision:
        """What is to be loaded besides, and how much of the prompt was seen before."""
        decision = replace(decision, seen_blocks=seen_blocks(overlap.stored, overlap.tiers[_GPU]))
        near = self._ledger.stores.store_of(slot)
        if offer is None or near is None:
            return decision
        plan = offer.plan(_position(facts, slot), facts.reusable_blocks, near)
        if not plan.runs:
            return decision
        found = decision.forecast_blocks + plan.blocks
        computed = facts.prompt_tokens - found * facts.block_size
        return replace(
            decision,
            loads=plan.runs,
            load_blocks=plan.blocks,
            forecast_blocks=found,
            uncached_tokens=min(decision.uncached_tokens, computed),
            reason=Reason.KV_LOAD,
        )

    def _seat(self, spec: PolicySpec) -> _Seat:
        seat = self._seats.get(spec)
        if seat is not None:
            self._seats.move_to_end(spec)
            return seat
        policy = make_policy(spec, policies=self._policies)
        history = None if policy.history is None else RoutingHistory(policy.history)
        seat = self._seats[spec] = _Seat(policy, history)
        if len(self._seats) > self._max_policies:
            self._seats.popitem(last=False)
        return seat

    def _facts(
        self,
        request: SelectRequest,
        overlap: JointOverlap,
        slots: NDArray[np.int64],
        directory: Directory,
        seat: _Seat,
        now: float,
    ) -> Facts:
        tiers, speculative = _columns(overlap.tiers, slots), _columns(overlap.speculative, slots)
        if not request.reads_cache:
            tiers, speculative = np.zeros_like(tiers), np.zeros_like(speculative)
        hashes = request.hashes if not request.chains else request.split_hashes()[0]
        history = NO_DEPTHS if seat.history is None else seat.history.depths(hashes, slots, now)
        room = self._ledger.room
        return Facts(
            slots,
            tiers,
            speculative,
            _columns(self._ledger.loads_at(now), slots).copy(),
            request.prompt_tokens,
            request.block_size,
            seat.turn,
            request.hints,
            hashes,
            _columns(directory.keys, slots),
            history,
            self._ledger.rates.of(slots),
            _columns(room.tokens, slots).copy() if room.is_known else NO_FIGURES,
        )


def _sent(facts: Facts, slot: int) -> int | None:
    if not len(facts.history):
        return None
    return int(facts.history[_position(facts, slot)])


def _position(facts: Facts, slot: int) -> int:
    return int(facts.slots.searchsorted(slot))


def _columns(rows: NDArray[N], slots: NDArray[np.int64]) -> NDArray[N]:
    """The slots' part of the last axis: a view where they are the first ones, as in most groups."""
    count = len(slots)
    if slots.item(count - 1) == count - 1:
        return rows[..., :count]
    return rows.take(slots, axis=-1)


def _decision(
    request: SelectRequest,
    overlap: JointOverlap,
    slot: int,
    ranked: tuple[ReplicaId, ...],
    reason: Reason,
    decided_seq: int | None,
    sent: int | None,
) -> Decision:
    """`sent`: the blocks that a policy which does not ask the index believes to be there."""
    confirmed, _, stored = overlap.tiers[:, slot].tolist()
    speculative = overlap.speculative.item(slot)
    reusable = max(request.prompt_tokens - 1, 0) // request.block_size
    if not request.reads_cache:
        reusable = 0
    held = min(max(speculative, stored) if sent is None else sent, reusable)
    return Decision(
        booking_id=request.booking_id,
        replica_id=ranked[0],
        ranked=ranked,
        overlap_blocks=confirmed,
        speculative_blocks=speculative,
        load_blocks=0,
        forecast_blocks=min(confirmed, reusable),
        uncached_tokens=request.prompt_tokens - held * request.block_size,
        reason=reason,
        chain_overlaps=tuple([part.tiers.item(_GPU, slot) for part in overlap.parts]),
        decided_seq=decided_seq,
    )
