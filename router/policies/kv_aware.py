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

_CPU, _STORAGE, _DECODE_BLOCKS = int(Tier.CPU), int(Tier.STORAGE), int(Load.DECODE_BLOCKS)
"""Numpy takes half as long for an index that is no enum."""

_NO_SHORTAGE: Floats = np.array(0.0)
_UNDER_WAY = np.array(0.3)
"""Share of a booked prefill that is done by the time somebody comes to wait for its blocks."""


class KvAwareParameters(Parameters):
    """Prices and thresholds; see `KvAware` for the cost that they form.

    `prefill_ms_per_token`, `prefill_base_ms`: a prefill of n tokens takes `base + n · per_token`.
    `decode_ms_per_block`: what each KV block of the requests there adds to a step of the engine.
    These three are what is believed until replicas have been observed.
    `queue_weight`: worth of one token of waiting. Above 1 because a queue grows by those that come
    before this request's turn, too.
    `overlap_weight`: worth of one token of own prefill. Above 1 because a block computed once more
    also evicts one that another request would have found.
    `interference_weight`: share of the own prefill by which it delays each request that is there.
    `recent_weight`: worth of one token computed there lately. Who was sent a conversation will be
    sent its next turns, so this spreads over time what load shows only for a moment.
    `patience_tokens`: the fewer, the more one long time to first token weighs against many short
    ones; that of so many tokens of prefill counts once more.
    `shortage_weight`: tokens of waiting that one token counts for which the cache has no room.
    `cpu_block_cost`, `storage_block_cost`: getting a block from that tier, as a share of computing;
    of stored ones, until a replica has measured it.
    `min_overlap_blocks`: overlap below it counts as none.
    `min_prompt_blocks`: prompts with fewer full blocks are placed by load alone.
    `tie_tolerance_ms`: costs closer than that are equal, and chance decides.
    `max_load_ratio`: a candidate whose requests would exceed that multiple of the candidates' mean
    is taken only after all others.
    """

    prefill_ms_per_token: float = Field(0.0152, gt=0)
    prefill_base_ms: float = Field(14.0, ge=0)
    decode_ms_per_block: float = Field(0.03, ge=0)
    queue_weight: float = Field(14.0, ge=1)
    overlap_weight: float = Field(1.5, ge=0)
    interference_weight: float = Field(1.7, ge=0)
    recent_weight: float = Field(0.19, ge=0)
    patience_tokens: float = Field(1000.0, gt=0)
    shortage_weight: float = Field(2.0, ge=0)
    cpu_block_cost: float = Field(0.25, ge=0, le=1)
    storage_block_cost: float = Field(0.5, ge=0, le=1)
    min_overlap_blocks: int = Field(1, ge=1)
    min_prompt_blocks: int = Field(1, ge=0)
    tie_tolerance_ms: float = Field(0.1, gt=0)
    max_load_ratio: float = Field(4.0, ge=1)

    @model_validator(mode="after")
    def _slower_tier_is_dearer(self) -> "KvAwareParameters":
        if self.storage_block_cost < self.cpu_block_cost:
            raise ValueError("storage_block_cost is below cpu_block_cost")
        return self


class KvAware:
    """Costs are expected milliseconds: the replica's own per token of prefill, times the tokens

        waiting + (queue_weight - 1) · (waiting beyond what is reused)   for what is booked there
      + own prefill · overlap_weight                      computing what is not held there
      + own prefill · requests · interference_weight      delaying the requests there
      + recent · recent_weight                            what was sent there will come back
      + first token² / patience_tokens                    nobody is to wait for very long

    where *waiting* are the tokens booked there, and `shortage_weight` times those for which the
    cache lacks room; *own prefill* is the prompt less what is reused there, and the base; *first
    token* is the waiting, the own prefill and one step of the requests there. Waiting up to what
    is reused counts once only, and less until the first token, because it may be for the reused
    blocks themselves. A candidate over `max_load_ratio` carries the dearest candidate's cost and
    1 ms on top of its own.
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
        self._base_tokens = parameters.prefill_base_ms / parameters.prefill_ms_per_token
        # As arrays without dimensions they save numpy the conversion of the number.
        self._prices = _prices(parameters)
        self._beyond_weight = np.array(parameters.queue_weight - 1)
        self._overlap_weight = np.array(parameters.overlap_weight)
        self._per_patience = np.array(1 / parameters.patience_tokens)

    def choose(self, facts: Facts, rng: Random) -> Choice:
        reused = self._reused_blocks(facts)
        costs = self._costs(facts, reused)
        self._surcharge_overloaded(facts.requests, costs)
        order = rank(costs, self._parameters.tie_tolerance_ms, rng)
        reason = self._reason(facts, reused, int(order[0]))
        return Choice(facts.slots.take(order), costs, reason)

    def terms(self, facts: Facts) -> dict[str, Floats]:
        """What the costs are made of, by name: milliseconds [n] each, without the surcharge."""
        parameters, (per_token, step_tokens) = self._parameters, self._rates(facts)
        reused = self._reused_blocks(facts)
        saved = np.zeros(len(facts.slots)) if reused is None else reused * facts.block_size
        own = facts.prompt_tokens + self._base_tokens - saved
        waiting = facts.prefill_tokens + self._shortage(facts, own)
        shared = np.minimum(waiting, saved)
        _, decode_blocks, requests, recent = facts.loads
        first_token = waiting + own - _UNDER_WAY * shared + step_tokens * decode_blocks
        return {
            "waiting": per_token * (waiting + (parameters.queue_weight - 1) * (waiting - shared)),
            "own_prefill": per_token * own * parameters.overlap_weight,
            "others_delay": per_token * own * requests * parameters.interference_weight,
            "recent": per_token * recent * parameters.recent_weight,
            "patience": per_token * first_token**2 / parameters.patience_tokens,
        }

    def _reused_blocks(self, facts: Facts) -> Floats | None:
        """What each candidate saves, in computed blocks [n]; None where that is to be ignored."""
        parameters = self._parameters
        if facts.prompt_blocks < parameters.min_prompt_blocks:
            return None
        stored = facts.tiers[_STORAGE]
        most = max(_largest(stored), _largest(facts.speculative))
        if most < parameters.min_overlap_blocks:
            return None
        reused: Floats = self._tier_gains.dot(facts.tiers)
        if len(facts.load_shares):
            reused += self._measured_gain(facts)
        np.maximum(reused, facts.speculative, out=reused)
        if parameters.min_overlap_blocks > 1:
            known = np.maximum(facts.speculative, stored)
            reused[known < parameters.min_overlap_blocks] = 0
        if most > (reusable_blocks := facts.reusable_blocks):
            np.minimum(reused, float(reusable_blocks), out=reused)
        return reused

    def _measured_gain(self, facts: Facts) -> Floats:
        """What stored blocks gain over the parameter's belief, where loading has been measured."""
        shares = facts.load_shares
        believed = self._parameters.storage_block_cost
        gains: Floats = np.where(np.isfinite(shares), believed - shares, 0.0)
        gains *= facts.tiers[_STORAGE] - facts.tiers[_CPU]
        return gains

    def _costs(self, facts: Facts, reused: Floats | None) -> Floats:
        """The sum of the terms, in few steps over the candidates: each costs a microsecond."""
        per_token, step_tokens = self._rates(facts)
        costs, own_weight, first_token = self._prices.dot(facts.loads)
        own: Floats | float = facts.prompt_tokens + self._base_tokens
        if reused is not None:
            saved = reused * facts.block_size
            own = own - saved
        waiting = facts.prefill_tokens
        if len(facts.room_tokens):
            shortage = self._shortage(facts, own)
            if shortage is not _NO_SHORTAGE:
                waiting = waiting + shortage
                first_token += shortage
                costs += self._parameters.queue_weight * shortage
        first_token += facts.loads[_DECODE_BLOCKS] * step_tokens
        first_token += own
        if reused is not None:
            shared = np.minimum(waiting, saved)
            costs -= shared * self._beyond_weight
            first_token -= shared * _UNDER_WAY
        first_token *= first_token
        first_token *= self._per_patience
        own_weight += self._overlap_weight
        own_weight *= own
        costs += own_weight
        costs += first_token
        total: Floats = costs
        total *= per_token
        return total

    def _shortage(self, facts: Facts, own: Floats | float) -> Floats:
        """In tokens of waiting: for what the caches have no room."""
        room = facts.room_tokens
        most = facts.prompt_tokens + self._base_tokens
        if not len(room) or room.item(room.argmin()) >= most:
            return _NO_SHORTAGE
        lacking: Floats = np.maximum(own - room, 0.0)
        lacking *= self._parameters.shortage_weight
        return lacking

    def _rates(self, facts: Facts) -> tuple[Floats | float, float]:
        """Milliseconds per token of prefill, and the tokens that a block's step is worth."""
        parameters, (prefill, decode, slowness) = self._parameters, facts.rates
        per_token = prefill.learned + prefill.prior_share * parameters.prefill_ms_per_token
        per_block = decode.learned + decode.prior_share * parameters.decode_ms_per_block
        step_tokens = per_block / per_token
        return (per_token * slowness if len(slowness) else per_token), step_tokens

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
    """By row of the loads [3, 4]: what a unit costs by itself, what it adds to the weight of the
    own prefill, and by how much it delays the first token, in tokens."""
    prices = np.zeros((3, len(Load)))
    prices[0, Load.PREFILL_TOKENS] = parameters.queue_weight
    prices[0, Load.RECENT_TOKENS] = parameters.recent_weight
    prices[1, Load.REQUESTS] = parameters.interference_weight
    prices[2, Load.PREFILL_TOKENS] = 1.0
    return prices


def _largest(values: Floats | NDArray[np.int32]) -> float:
    """On arrays as short as these, `max()` takes four times as long."""
    return values.item(values.argmax())
