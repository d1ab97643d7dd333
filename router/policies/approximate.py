"""`kv_aware` without events: what replicas hold is guessed from where prompts were sent. Pure.

For engines that publish no KV events. It is wrong where a replica evicts sooner than remembered,
restarts, or drops its cache.
"""

from random import Random
from typing import ClassVar

import numpy as np
from msgspec.structs import replace
from pydantic import Field

from router.core.routing_history import HistoryBounds
from router.policies.base import Choice, Facts, Reason
from router.policies.kv_aware import KvAware
from router.policies.kv_aware_parameters import KvAwareParameters


class ApproximateParameters(KvAwareParameters):
    """Those of `kv_aware`, and the bounds of the memory: a block counts as held `ttl_s` after it
    was last sent, and of one replica at most `max_blocks_per_replica` do (about 200 bytes each);
    set that to the blocks of its cache."""

    ttl_s: float = Field(120.0, gt=0)
    max_blocks_per_replica: int = Field(16_384, ge=1)


class Approximate:
    """The cost of `kv_aware`, with the routing history in the place of what replicas say."""

    name: ClassVar[str] = "approximate"
    needs_overlap: ClassVar[bool] = False
    needs_load: ClassVar[bool] = True

    def __init__(self, parameters: ApproximateParameters) -> None:
        self._by_cost = KvAware(parameters)
        self.history = HistoryBounds(parameters.ttl_s, parameters.max_blocks_per_replica)

    def choose(self, facts: Facts, rng: Random) -> Choice:
        sent = facts.history
        guessed = replace(facts, tiers=np.stack([sent, sent, sent]), speculative=sent)
        choice = self._by_cost.choose(guessed, rng)
        if choice.reason is Reason.KV_OVERLAP:
            return replace(choice, reason=Reason.HISTORY_OVERLAP)
        return choice
