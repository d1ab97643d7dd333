"""What the selector is asked and what it answers. Values only; pure."""

from dataclasses import dataclass, field
from enum import StrEnum
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from router.core.transfer import StoredRun
from router.core.types import BookingId, ReplicaId, Tenant, Value
from router.policies.base import NO_HINTS, Hints, Reason
from router.policies.registry import PolicySpec


class SelectRequest(Value, frozen=True, eq=False):
    """One prompt that wants a replica.

    `hashes` uint64: the chain of its full blocks. After `expires_at`, on the clock of the call's
    `now`, nobody waits for the answer. `candidates`: the replicas to choose from, all if None.
    `reads_cache` is false where the engine will reuse nothing (prompt log-probabilities).
    A request with several prompts or choices has the prompts' chains one after the other in
    `hashes`, and in `chains` the blocks of each; they all go to one replica, and nothing of them is
    loaded from stores.
    """

    booking_id: BookingId
    tenant: Tenant
    hashes: NDArray[np.uint64]
    prompt_tokens: int
    block_size: int
    expires_at: float
    lease_s: float
    policy: PolicySpec = PolicySpec()
    reads_cache: bool = True
    candidates: tuple[ReplicaId, ...] | None = None
    excluded: tuple[ReplicaId, ...] = ()
    hints: Hints = NO_HINTS
    chains: tuple[int, ...] = ()

    def split_hashes(self) -> list[NDArray[np.uint64]]:
        """The chain of each prompt; no copies."""
        if not self.chains:
            return [self.hashes]
        ends = list(accumulate(self.chains))
        return [
            self.hashes[end - blocks : end] for blocks, end in zip(self.chains, ends, strict=True)
        ]


class Decision(Value, frozen=True):
    """Where a request goes and what is expected there, in blocks from the prompt's start.

    `ranked` begins with `replica_id` and is cut after the selector's `max_alternatives`.
    `loads` are stored objects, in the order of the chain, that hold the `load_blocks` after the
    confirmed ones; they are to be loaded before prefill. `seen_blocks` were computed before
    somewhere, as far as is known; 0 where no replica has a store.
    `forecast_blocks` are those that the engine is expected to report as cached;
    `uncached_tokens` is what was booked, with speculative blocks taken as held, or with those that
    the policy itself remembers. Of several prompts
    these are sums, and `chain_overlaps` has the confirmed blocks of each. `decided_seq` is the
    last event batch of the replica that the decision could know.
    """

    booking_id: BookingId
    replica_id: ReplicaId
    ranked: tuple[ReplicaId, ...]
    overlap_blocks: int
    speculative_blocks: int
    load_blocks: int
    forecast_blocks: int
    uncached_tokens: int
    reason: Reason
    chain_overlaps: tuple[int, ...] = ()
    decided_seq: int | None = None
    loads: tuple[StoredRun, ...] = ()
    seen_blocks: int = 0


class RejectionCause(StrEnum):
    """Why there is no decision."""

    EXPIRED = "expired"
    """The deadline had passed before it was its turn; nobody waits."""
    NO_REPLICA = "no_replica"
    INVALID_POLICY = "invalid_policy"


@dataclass(frozen=True, slots=True)
class Rejection:
    """Nothing was booked."""

    booking_id: BookingId
    cause: RejectionCause


Outcome = Decision | Rejection


@dataclass(frozen=True, slots=True)
class CandidateView:
    """One candidate as the policy saw it: overlaps in blocks, cost and what it is made of in the
    policy's unit; no `terms` where a policy cannot tell. `load_blocks` it would load from a store,
    `load_share` what that takes as a share of computing them, None where nothing was measured."""

    replica_id: ReplicaId
    cost: float
    overlap_blocks: int
    speculative_blocks: int
    prefill_tokens: int
    decode_blocks: int
    requests: int
    terms: dict[str, float] = field(default_factory=dict)
    load_blocks: int = 0
    load_share: float | None = None


@dataclass(frozen=True, slots=True)
class Explanation:
    """A decision with all that it was made from, candidates in order of cost.

    `diverges_at`: some candidate holds so many leading blocks, and none the block after them, which
    had to be computed wherever the request went.
    """

    decision: Decision
    tenant: Tenant
    policy: PolicySpec
    candidates: tuple[CandidateView, ...]
    diverges_at: int
