"""The last decisions with what they were made from, for those who ask why. Pure, bounded."""

from collections import OrderedDict
from math import isnan, nan

from router.candidates import Directory
from router.core.load_totals import Load
from router.core.types import BookingId, Tenant, Tier, Value
from router.decision import CandidateView, Decision, Explanation
from router.policies.base import Choice, Facts, Floats, Itemised
from router.policies.registry import PolicySpec, make_policy


class Record(Value, frozen=True, eq=False):
    """A decision and its inputs as arrays; becomes an `Explanation` only when somebody asks."""

    decision: Decision
    tenant: Tenant
    policy: PolicySpec
    facts: Facts
    choice: Choice
    directory: Directory

    def explanation(self) -> Explanation:
        """O(candidates · log candidates)."""
        policy = make_policy(self.policy)
        terms = policy.terms(self.facts) if isinstance(policy, Itemised) else {}
        views = [self._view(position, terms) for position in range(len(self.facts.slots))]
        views.sort(key=lambda view: view.cost)
        diverges_at = max(view.overlap_blocks for view in views)
        return Explanation(self.decision, self.tenant, self.policy, tuple(views), diverges_at)

    def _view(self, position: int, terms: dict[str, Floats]) -> CandidateView:
        facts = self.facts
        return CandidateView(
            replica_id=self.directory.names[int(facts.slots[position])],
            cost=float(self.choice.costs[position]),
            overlap_blocks=int(facts.tiers[Tier.GPU, position]),
            speculative_blocks=int(facts.speculative[position]),
            prefill_tokens=int(facts.loads[Load.PREFILL_TOKENS, position]),
            decode_blocks=int(facts.loads[Load.DECODE_BLOCKS, position]),
            requests=int(facts.loads[Load.REQUESTS, position]),
            terms={name: float(part[position]) for name, part in terms.items()},
            load_blocks=int(facts.tiers[Tier.STORAGE, position] - facts.tiers[Tier.GPU, position]),
            load_share=_measured(facts.load_shares, position),
        )


def _measured(figures: Floats, position: int) -> float | None:
    figure = figures.item(position) if len(figures) else nan
    return None if isnan(figure) else figure


class Explanations:
    """Records by booking, the newest `max_candidates` candidates of them (about 60 bytes each)."""

    def __init__(self, max_candidates: int = 262_144) -> None:
        self._max_candidates = max_candidates
        self._candidates = 0
        self._records: OrderedDict[BookingId, Record] = OrderedDict()

    def __len__(self) -> int:
        return len(self._records)

    def add(self, record: Record) -> None:
        """A later decision on the same booking replaces the earlier."""
        booking_id = record.decision.booking_id
        earlier = self._records.pop(booking_id, None)
        if earlier is not None:
            self._candidates -= len(earlier.facts.slots)
        self._records[booking_id] = record
        self._candidates += len(record.facts.slots)
        while self._candidates > self._max_candidates and len(self._records) > 1:
            _, oldest = self._records.popitem(last=False)
            self._candidates -= len(oldest.facts.slots)

    def get(self, booking_id: BookingId) -> Explanation | None:
        record = self._records.get(booking_id)
        return None if record is None else record.explanation()
