"""Weighs what a replica holds of the prompt against what waits and runs there. Pure.

Never the longest match as such: a first block that all prompts share would pull all of them to one
replica. A block is worth the time that it saves, and load the time that it costs.
"""

from random import Random
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from router.core.load_totals import Load
from router.core.types import Tier
from router.policies.base import Choice, Facts, Floats, Reason, rank
from router.policies.kv_aware_parameters import KvAwareParameters

_GPU, _CPU, _STORAGE = int(Tier.GPU), int(Tier.CPU), int(Tier.STORAGE)
"""Numpy takes half as long for an index that is no enum."""

_UNDER_WAY = 0.3
"""Share of a booked prefill that is done by the time somebody comes to wait for its blocks."""

_LITTLE_RECENT = 100_000.0
"""Tokens: below such a mean, shares of what was computed lately say little, and count less."""

_LOADS = len(Load)
_WAITING, _DECODE_BLOCKS, _REQUESTS, _RECENT = map(int, Load)
_SAVED, _SHARED, _ONE, _FEATURES = _LOADS, _LOADS + 1, _LOADS + 2, _LOADS + 3
"""What candidates are weighed by: their loads, the tokens that they save and those of them that are
waited for, and 1."""
_BY_ITSELF, _OWN_WEIGHT, _FIRST_TOKEN, _UNIT, _OWN, _FIRST_TOKEN_AGAIN = range(6)
_PRODUCTS = 3
"""The cost is `by itself · 1 + own weight · own + first token · first token`: these are its
factors, all left ones before all right ones."""

Blocks = Floats | NDArray[np.int32]


class KvAware:
    """Costs are expected milliseconds: the replica's own per token of prefill, times the tokens

        waiting + (queue_weight - 1) · (waiting beyond what is reused)   for what is booked there
      + own prefill · overlap_weight                      computing what is not held there
      + own prefill · requests · interference_weight      delaying the requests there
      + share of recent · recent_share_tokens             what was sent there will come back
      + first token² / patience_tokens                    nobody is to wait for very long

    where *share of recent* is what was computed there lately over the candidates' mean of that;
    *waiting* are the tokens booked there, and `shortage_weight` times those for which the cache
    lacks room; *own prefill* is the prompt less what is reused there, and the base; *first token*
    is the waiting, the own prefill and one step of the requests there. Waiting up to what is reused
    counts once only, and less until the first token, because it may be for the reused blocks
    themselves. A candidate over `max_load_ratio` carries the dearest candidate's cost and
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
        self._weights = _weights(parameters)
        self._per_patience = parameters.patience_tokens**-0.5

    def choose(self, facts: Facts, rng: Random) -> Choice:
        reused = self._reused_blocks(facts)
        features = self._features(facts, reused)
        costs = self._costs(facts, features)
        self._surcharge_overloaded(features, costs)
        order = rank(costs, self._parameters.tie_tolerance_ms, rng)
        reason = self._reason(facts, reused, int(order[0]))
        return Choice(facts.slots.take(order), costs, reason)

    def terms(self, facts: Facts) -> dict[str, Floats]:
        """What the costs are made of, by name: milliseconds [n] each, without the surcharge."""
        parameters, (fleet_rate, step_tokens) = self._parameters, self._rates(facts)
        slowness = facts.rates.slowness
        per_token = fleet_rate * slowness if len(slowness) else fleet_rate
        reused = self._reused_blocks(facts)
        saved = np.zeros(len(facts.slots))
        if reused is not None:
            saved += reused * facts.block_size
        own = facts.prompt_tokens + self._base_tokens - saved
        waiting = facts.prefill_tokens + self._shortage(facts, saved)
        shared = np.minimum(waiting, saved)
        _, decode_blocks, requests, recent = facts.loads
        share = recent / (recent.mean() + _LITTLE_RECENT)
        first_token = waiting + own - _UNDER_WAY * shared + step_tokens * decode_blocks
        return {
            "waiting": per_token * (waiting + (parameters.queue_weight - 1) * (waiting - shared)),
            "own_prefill": per_token * own * parameters.overlap_weight,
            "others_delay": per_token * own * requests * parameters.interference_weight,
            "recent": per_token * share * parameters.recent_share_tokens,
            "patience": per_token * first_token**2 / parameters.patience_tokens,
        }

    def _reused_blocks(self, facts: Facts) -> Blocks | None:
        """What each candidate saves, in computed blocks [n]; None where that is to be ignored."""
        parameters = self._parameters
        if facts.prompt_blocks < parameters.min_prompt_blocks:
            return None
        reused: Blocks = facts.speculative
        most, least = _largest(facts.speculative), parameters.min_overlap_blocks
        if facts.tiers[_GPU].tobytes() != facts.tiers[_STORAGE].tobytes():
            most = max(most, _largest(facts.tiers[_STORAGE]))
            reused = np.maximum(self._tiers_worth(facts), reused)
        if most < least:
            return None
        if least > 1:
            known = np.maximum(facts.speculative, facts.tiers[_STORAGE])
            reused = np.where(known < least, 0, reused)
        if most > (reusable_blocks := facts.reusable_blocks):
            reused = np.minimum(reused, reusable_blocks)
        return reused

    def _tiers_worth(self, facts: Facts) -> Floats:
        """In computed blocks; where loading stored ones has been measured, by that."""
        worth: Floats = self._tier_gains.dot(facts.tiers)
        if len(facts.load_shares):
            shares, believed = facts.load_shares, self._parameters.storage_block_cost
            gains = np.where(np.isfinite(shares), believed - shares, 0.0)
            worth += gains * (facts.tiers[_STORAGE] - facts.tiers[_CPU])
        return worth

    def _costs(self, facts: Facts, features: Floats) -> Floats:
        """The sum of the terms, in few steps over the candidates: each costs half a microsecond."""
        per_token, step_tokens = self._rates(facts)
        weights, prompt_tokens = self._weights.copy(), facts.prompt_tokens + self._base_tokens
        mean_recent = float(features[_RECENT].dot(features[_ONE])) / len(facts.slots)
        weights[_BY_ITSELF, _RECENT] /= mean_recent + _LITTLE_RECENT
        weights[_OWN, _ONE] = prompt_tokens
        for row in _FIRST_TOKEN, _FIRST_TOKEN_AGAIN:
            weights[row, _ONE] = prompt_tokens * self._per_patience
            weights[row, _DECODE_BLOCKS] = step_tokens * self._per_patience
        factors = weights.dot(features)
        products = factors[:_PRODUCTS]
        products *= factors[_PRODUCTS:]
        costs: Floats = np.array((per_token,) * _PRODUCTS).dot(products)
        if len(facts.rates.slowness):
            costs *= facts.rates.slowness
        return costs

    def _features(self, facts: Facts, reused: Blocks | None) -> Floats:
        """[_FEATURES, n]."""
        features = np.zeros((_FEATURES, len(facts.slots)))
        features[:_LOADS] = facts.loads
        features[_ONE] = 1.0
        waiting, saved = features[_WAITING], features[_SAVED]
        if reused is not None:
            saved[:] = reused
            saved *= float(facts.block_size)
        if self._may_lack_room(facts):
            waiting += self._shortage(facts, saved)
        if reused is not None:
            np.minimum(waiting, saved, features[_SHARED])
        return features

    def _may_lack_room(self, facts: Facts) -> bool:
        room, prompt_tokens = facts.room_tokens, facts.prompt_tokens + self._base_tokens
        return bool(len(room)) and room.item(room.argmin()) < prompt_tokens

    def _shortage(self, facts: Facts, saved: Floats) -> Floats:
        """In tokens of waiting: for what the caches have no room."""
        lacking: Floats = facts.prompt_tokens + self._base_tokens - saved
        if not len(facts.room_tokens):
            return np.zeros_like(lacking)
        return self._parameters.shortage_weight * np.maximum(lacking - facts.room_tokens, 0.0)

    def _rates(self, facts: Facts) -> tuple[float, float]:
        """The fleet's milliseconds per token of prefill, and tokens that a block's step takes."""
        parameters, (prefill, decode, _) = self._parameters, facts.rates
        per_token = prefill.learned + prefill.prior_share * parameters.prefill_ms_per_token
        per_block = decode.learned + decode.prior_share * parameters.decode_ms_per_block
        return per_token, per_block / per_token

    def _surcharge_overloaded(self, features: Floats, costs: Floats) -> None:
        """Bounded loads (Mirrokni et al. 2018); with one request each, nobody is over the bound."""
        requests = features[_REQUESTS]
        mean = float(requests.dot(features[_ONE])) / len(costs)
        bound = self._parameters.max_load_ratio * (mean + 1) - 1
        if _largest(requests) > bound:
            costs[requests > bound] += costs.max() + 1

    def _reason(self, facts: Facts, reused: Blocks | None, chosen: int) -> Reason:
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


def _weights(parameters: KvAwareParameters) -> Floats:
    """[factors, _FEATURES]: what each feature adds to each factor, but for what the prompt and the
    rates decide. The first token comes by the root of what its square is priced."""
    weights = np.zeros((2 * _PRODUCTS, _FEATURES))
    weights[_BY_ITSELF, _WAITING] = parameters.queue_weight
    weights[_BY_ITSELF, _SHARED] = 1 - parameters.queue_weight
    weights[_BY_ITSELF, _RECENT] = parameters.recent_share_tokens
    weights[_UNIT, _ONE] = 1.0
    weights[_OWN_WEIGHT, _REQUESTS] = parameters.interference_weight
    weights[_OWN_WEIGHT, _ONE] = parameters.overlap_weight
    weights[_OWN, _SAVED] = -1.0
    weights[_FIRST_TOKEN, [_WAITING, _SAVED, _SHARED]] = 1.0, -1.0, -_UNDER_WAY
    weights[_FIRST_TOKEN] *= parameters.patience_tokens**-0.5
    weights[_FIRST_TOKEN_AGAIN] = weights[_FIRST_TOKEN]
    return weights


def _largest(values: Floats | NDArray[np.int32]) -> float:
    """On arrays as short as these, `max()` takes four times as long."""
    return values.item(values.argmax())
