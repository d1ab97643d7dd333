"""What can be set of the policy `kv_aware`. Pure."""

from pydantic import Field, model_validator

from router.policies.base import Parameters


class KvAwareParameters(Parameters):
    """Prices and thresholds; see `KvAware` for the cost that they form.

    `prefill_ms_per_token`, `prefill_base_ms`: a prefill of n tokens takes `base + n · per_token`.
    `decode_ms_per_block`: what each KV block of the requests there adds to a step of the engine.
    These three are what is believed until replicas have been observed.
    `queue_weight`: worth of one token of waiting. Above 1 because a queue grows by those that come
    before this request's turn, too.
    `overlap_weight`: worth of one token of own prefill.
    `interference_weight`: share of the own prefill by which it delays each request that is there.
    `recent_share_tokens`: worth, in tokens, of having computed as much lately as the candidates do
    on average. Who was sent a conversation will be sent its next turns, so this spreads over time
    what load shows only for a moment.
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
    queue_weight: float = Field(24.0, ge=1)
    overlap_weight: float = Field(1.0, ge=0)
    interference_weight: float = Field(0.8, ge=0)
    recent_share_tokens: float = Field(45_000.0, ge=0)
    patience_tokens: float = Field(1500.0, gt=0)
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
