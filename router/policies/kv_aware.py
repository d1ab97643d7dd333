"""Weighs what a replica holds of the prompt against what waits and runs there. Pure.

Never the longest match as such: a first block that all prompts share would pull all of them to one
replica. A block is worth the time that it saves, and load the time that it costs.
"""

from random import Random
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from router.core.load_totals import Load
from router.core.types import Tier
from router.policies.base import Choice, Facts, Floats, Parameters, Reason, rank

_GPU, _STORAGE = int(Tier.GPU), int(Tier.STORAGE)
"""Numpy takes half as long for an index that is no enum."""


class KvAwareParameters(Parameters):
    """Prices and thresholds; see `KvAware` for the cost that they form.

    `prefill_ms_per_token`, `prefill_base_ms`: a prefill of n tokens takes `base + n · per_token`.
    `queue_weight`: milliseconds that one millisecond of waiting counts. Above 1 because a queue
    grows by those that come before this request's turn, too, which is what the slowest feel.
    `overlap_weight`: milliseconds that one millisecond of own prefill counts. Above 1 because a
    block computed once more also evicts one that another request would have found.
    `interference_weight`: share of the own prefill by which it delays each request that is there.
    `decode_ms_per_block`: delay per KV block of the requests there.
    `recent_weight`: share of the tokens computed there lately that counts like waiting ones. It
    spreads over time what would fill one cache while others stand empty.
    `cpu_block_cost`, `storage_block_cost`: getting a block from that tier, as a share of computing.
    `speculative_weight`: worth of a block on its way there, as a share of one that is there.
    `min_overlap_blocks`: overlap below it counts as none.
    `min_prompt_blocks`: prompts with fewer full blocks are placed by load alone.
    `tie_tolerance_ms`: costs closer than that are equal, and chance decides.
    `max_load_ratio`: a candidate whose requests would exceed that multiple of the candidates' mean
    is taken only after all others.
    """

    prefill_ms_per_token: float = Field(0.0152, gt=0)
    prefill_base_ms: float = Field(16.0, ge=0)
    queue_weight: float = Field(2.0, ge=0)
    overlap_weight: float = Field(3.0, ge=0)
    interference_weight: float = Field(1.0, ge=0)
    decode_ms_per_block: float = Field(0.05, ge=0)
    recent_weight: float = Field(0.02, ge=0)
    cpu_block_cost: float = Field(0.25, ge=0, le=1)
    storage_block_cost: float = Field(0.5, ge=0, le=1)
    speculative_weight: float = Field(0.9, ge=0, le=1)
    min_overlap_blocks: int = Field(1, ge=1)
    min_prompt_blocks: int = Field(1, ge=0)
    tie_tolerance_ms: float = Field(0.1, gt=0)
    max_load_ratio: float = Field(2.0, ge=1)

    @model_validator(mode="after")
    def _slower_tier_is_dearer(self) -> "KvAwareParameters":
        if self.storage_block_cost < self.cpu_block_cost:
            raise ValueError("storage_block_cost is below cpu_block_cost")
        return self


class KvAware:
    """Costs are expected milliseconds, per candidate:

        booked prefill · queue_weight                         waiting for what is booked there
      + own prefill · overlap_weight                          computing what is not held there
      + own prefill · interference_weight · requests there    delaying the others
      + decode blocks there · decode_ms_per_block             being delayed by the others
      + recent prefill · recent_weight                        writing over what others reuse

    where own prefill is the time for the prompt's tokens less the reused ones, booked and recent
    prefill that for the tokens booked and computed there lately. A candidate over
    `max_load_ratio` carries the dearest candidate's cost and 1 ms on top of its own.
    """

    name: ClassVar[str] = "kv_aware"
    needs_overlap: ClassVar[bool] = True
    needs_load: ClassVar[bool] = True
    history: ClassVar[None] = None

    def __init__(self, parameters: KvAwareParameters) -> None:
        self._parameters = parameters
        cpu, storage = parameters.cpu_block_cost, parameters.storage_block_cost
        # Rows are nested depths, so each weighs what its blocks gain over the next slower tier.
        self._tier_gains = np.array([cpu, storage - cpu, 1 - storage])
        self._prices = _prices(parameters)
        # As an array without dimensions it saves numpy the conversion of the number.
        self._overlap_weight = np.array(parameters.overlap_weight)

    def choose(self, facts: Facts, rng: Random) -> Choice:
        reused = self._reused_blocks(facts)
        costs = self._costs(facts, reused)
        self._surcharge_overloaded(facts.requests, costs)
        order = rank(costs, self._parameters.tie_tolerance_ms, rng)
        reason = self._reason(facts, reused, int(order[0]))
        return Choice(facts.slots.take(order), costs, reason)

    def _reused_blocks(self, facts: Facts) -> Floats | None:
        """What each candidate saves, in computed blocks [n]; None where that is to be ignored."""
        parameters = self._parameters
        if facts.prompt_blocks < parameters.min_prompt_blocks:
            return None
        held, stored = facts.tiers[_GPU], facts.tiers[_STORAGE]
        on_its_way = facts.speculative - held
        most = _largest(stored)
        if is_any_on_its_way := _largest(on_its_way) > 0:
            most = max(most, _largest(facts.speculative))
        if most < parameters.min_overlap_blocks:
            return None
        reused: Floats = self._tier_gains.dot(facts.tiers)
        if is_any_on_its_way:
            np.maximum(reused, held + parameters.speculative_weight * on_its_way, out=reused)
        if parameters.min_overlap_blocks > 1:
            known = np.maximum(facts.speculative, stored)
            reused[known < parameters.min_overlap_blocks] = 0
        if most > (reusable_blocks := facts.reusable_blocks):
            np.minimum(reused, float(reusable_blocks), out=reused)
        return reused

    def _costs(self, facts: Facts, reused: Floats | None) -> Floats:
        parameters = self._parameters
        per_token = parameters.prefill_ms_per_token
        own: Floats | float = parameters.prefill_base_ms + per_token * facts.prompt_tokens
        if reused is not None:
            own = own - (per_token * facts.block_size) * reused
        priced = self._prices.dot(facts.loads)
        costs: Floats = priced[0]
        own_weights = priced[1]
        own_weights += self._overlap_weight
        own_weights *= own
        costs += own_weights
        return costs

    def _surcharge_overloaded(self, requests: Floats, costs: Floats) -> None:
        """Bounded loads (Mirrokni et al. 2018); with one request each, nobody is over the bound."""
        mean = float(np.add.reduce(requests)) / len(costs)
        bound = self._parameters.max_load_ratio * (mean + 1) - 1
        if _largest(requests) > bound:
            costs[requests > bound] += costs.max() + 1

    def _reason(self, facts: Facts, reused: Floats | None, chosen: int) -> Reason:
        if len(facts.slots) == 1:
            return Reason.ONLY_CANDIDATE
        if reused is None:
            is_short = facts.prompt_blocks < max(self._parameters.min_prompt_blocks, 1)
            return Reason.SHORT_PROMPT if is_short else Reason.NO_OVERLAP
        if facts.tiers[_STORAGE, chosen]:
            return Reason.KV_OVERLAP
        if facts.speculative[chosen]:
            return Reason.SPECULATIVE_OVERLAP
        return Reason.OVERLAP_OUTWEIGHED


def _prices(parameters: KvAwareParameters) -> Floats:
    """By row of the loads [2, 4]: what a unit costs by itself, and what it adds to the own
    prefill's weight."""
    per_token = parameters.prefill_ms_per_token
    prices = np.zeros((2, len(Load)))
    prices[0, Load.PREFILL_TOKENS] = per_token * parameters.queue_weight
    prices[0, Load.DECODE_BLOCKS] = parameters.decode_ms_per_block
    prices[0, Load.RECENT_TOKENS] = per_token * parameters.recent_weight
    prices[1, Load.REQUESTS] = parameters.interference_weight
    return prices


def _largest(values: Floats | NDArray[np.int32]) -> float:
    """On arrays as short as these, `max()` takes four times as long."""
    return values.item(values.argmax())
