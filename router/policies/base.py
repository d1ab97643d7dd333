"""What a routing policy is given, what it answers, and what it must be.

Pure. A policy holds its parameters and nothing else: what it may remember comes in with the facts,
and chance with the generator.
"""

from enum import StrEnum
from random import Random
from typing import ClassVar, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from router.core.load_totals import Load
from router.core.rates import UNOBSERVED, Rates
from router.core.routing_history import HistoryBounds
from router.core.types import Value

_PREFILL_TOKENS, _REQUESTS = int(Load.PREFILL_TOKENS), int(Load.REQUESTS)
"""Numpy takes half as long for an index that is no enum."""

Floats = NDArray[np.float64]


class Reason(StrEnum):
    """Why a replica was chosen: the whole vocabulary, for logs, metrics and `explain`."""

    KV_OVERLAP = "kv_overlap"
    """It holds leading blocks of the prompt, and its load did not outweigh them."""
    KV_LOAD = "kv_load"
    """It loads stored blocks of the prompt, which is cheaper there than to compute them."""
    SPECULATIVE_OVERLAP = "speculative_overlap"
    """It holds none yet, but requests on their way there will leave some."""
    NO_OVERLAP = "least_loaded:no_overlap"
    """No candidate holds enough of the prompt to count."""
    SHORT_PROMPT = "least_loaded:short_prompt"
    """The prompt has too few full blocks for reuse to matter."""
    OVERLAP_OUTWEIGHED = "least_loaded:overlap_outweighed"
    """Other candidates hold some of the prompt, but waiting there costs more than computing it."""
    LEAST_LOADED = "least_loaded"
    POWER_OF_TWO = "power_of_two"
    ROUND_ROBIN = "round_robin"
    SESSION_AFFINITY = "session_affinity"
    """It is the session's own."""
    PREFIX_HASH = "prefix_hash"
    """It is the prefix's own."""
    AFFINITY_OVERLOADED = "affinity_overloaded"
    """The session's or the prefix's own has no room; it is the next of the same order."""
    HISTORY_OVERLAP = "history_overlap"
    """It was sent leading blocks of the prompt lately, and its load did not outweigh them."""
    TIE = "tie"
    """Several candidates were equally good, and chance took one."""
    ONLY_CANDIDATE = "only_candidate"


class Parameters(BaseModel):
    """A policy's parameters: frozen, closed against unknown keys and against coercion."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class Hints(Value, frozen=True):
    """What the client or the ingress says about a request beyond its prompt."""

    expected_output_tokens: int | None = None
    session_hint: str | None = None


NO_HINTS = Hints()
NO_KEYS = np.empty(0, np.uint64)
NO_DEPTHS = np.empty(0, np.int32)
NO_FIGURES: Floats = np.empty(0)


class Facts(Value, frozen=True, eq=False):
    """One request and n >= 1 candidates; arrays are aligned with `slots` and read-only by contract.

    `tiers` int32 [3, n], by `Tier`: leading blocks each held at that tier or a faster one, so row 0
    is what the GPU holds for certain. `speculative` int32 [n]: leading blocks if requests on their
    way are counted too, at least row 0. `loads` float64 [4, n], by `Load`: the ledger's, where
    recent tokens are prompt tokens computed there lately, fading. `turn` counts the choices that
    the same policy made before this one.

    `hashes` uint64: the chain of the prompt's full blocks, of the first one where there are
    several. `replica_keys` uint64 [n]: a digest of each candidate's name, the same everywhere and
    always. `history` int32 [n]: leading blocks that each was sent lately, for a policy that asks
    for it; else empty.

    `rates`: how fast they have been observed to compute. `room_tokens` float64 [n]: what each cache
    can take beside what is booked there; empty where nothing is known. `load_shares` float64 [n]:
    what loading the stored blocks takes there, as a share of computing them, NaN where it has not
    been measured; empty where nothing of the prompt is stored.
    """

    slots: NDArray[np.int64]
    tiers: NDArray[np.int32]
    speculative: NDArray[np.int32]
    loads: Floats
    prompt_tokens: int
    block_size: int
    turn: int = 0
    hints: Hints = NO_HINTS
    hashes: NDArray[np.uint64] = NO_KEYS
    replica_keys: NDArray[np.uint64] = NO_KEYS
    history: NDArray[np.int32] = NO_DEPTHS
    rates: Rates = UNOBSERVED
    room_tokens: Floats = NO_FIGURES
    load_shares: Floats = NO_FIGURES

    @property
    def prefill_tokens(self) -> Floats:
        """Booked and not yet computed [n]."""
        tokens: Floats = self.loads[_PREFILL_TOKENS]
        return tokens

    @property
    def requests(self) -> Floats:
        """Booked [n]."""
        requests: Floats = self.loads[_REQUESTS]
        return requests

    @property
    def prompt_blocks(self) -> int:
        """Full blocks: those that can be held at all."""
        return self.prompt_tokens // self.block_size

    @property
    def reusable_blocks(self) -> int:
        """An engine always computes the last token, so a block that ends in it is no gain."""
        return max(self.prompt_tokens - 1, 0) // self.block_size


class Choice(Value, frozen=True, eq=False):
    """All candidates, best first, as slots; `costs` [n] in the order of the facts.

    What a cost counts is the policy's own; a smaller one is better.
    """

    ranked: NDArray[np.int64]
    costs: Floats
    reason: Reason


class RoutingPolicy(Protocol):
    """A rule that ranks candidates. Every one passes `tests/contract/test_policy_contract.py`.

    `needs_overlap`: whether more overlap makes a replica more attractive to it.
    `needs_load`: whether more load makes a replica less attractive to it. `history`: the bounds of
    the routing history that is kept for it; None: it wants none.
    """

    name: ClassVar[str]
    needs_overlap: ClassVar[bool]
    needs_load: ClassVar[bool]

    @property
    def history(self) -> HistoryBounds | None: ...

    def choose(self, facts: Facts, rng: Random) -> Choice:
        """Equal facts and an equal generator give an equal choice. O(n log n)."""
        ...


@runtime_checkable
class Itemised(Protocol):
    """A policy that can say what its costs are made of."""

    def terms(self, facts: Facts) -> dict[str, Floats]:
        """By name [n] each, in the unit of its costs."""
        ...


def rank(costs: Floats, tolerance: float, rng: Random) -> NDArray[np.intp]:
    """Positions by ascending cost, with those closer than `tolerance` to the best in random order.

    Random noise of up to the tolerance is what makes it so: equally good ones are first equally
    often, and none is ever ranked before one that is better by more than the tolerance.
    """
    order: NDArray[np.intp] = costs.argsort()
    limit = costs[order[0]] + tolerance
    if len(order) > 1 and costs[order[1]] < limit:
        tied = order[: costs[order].searchsorted(limit)]
        noise = np.frombuffer(rng.randbytes(2 * len(costs)), np.uint16) * (tolerance / 2**16)
        tied[:] = tied[(costs + noise)[tied].argsort()]
    return order
