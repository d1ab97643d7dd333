"""The cost function of NVIDIA Dynamo's router as a policy, to meet what its own replay lacks.

Dynamo's replay knows no restarts and no second router. With this its default constants meet the
same faults as ours do, on the same simulated engines; `scripts/bench_replay` shows beside it what
Dynamo itself does without a fault.
"""

from collections.abc import Mapping
from random import Random
from types import MappingProxyType
from typing import ClassVar

import numpy as np
from pydantic import Field

from router.core.load_totals import Load
from router.core.types import Tier
from router.policies.base import Choice, Facts, Parameters, Reason, rank
from router.policies.registry import POLICIES, Registration, register

_ANY_DIFFERENCE = 1e-9


class DynamoCostParameters(Parameters):
    """`prefill_load_scale`: blocks of decoding that a block of prefill counts for."""

    prefill_load_scale: float = Field(1.0, gt=0)


class DynamoCost:
    """`prefill_load_scale · (waiting + prompt - held) + decode blocks`, in blocks; events alone."""

    name: ClassVar[str] = "dynamo_cost"
    needs_overlap: ClassVar[bool] = True
    needs_load: ClassVar[bool] = True
    history: ClassVar[None] = None

    def __init__(self, parameters: DynamoCostParameters) -> None:
        self._scale = parameters.prefill_load_scale

    def choose(self, facts: Facts, rng: Random) -> Choice:
        raw = (facts.prefill_tokens + facts.prompt_tokens) / facts.block_size
        prefill = np.maximum(raw - facts.tiers[Tier.GPU], 0.0)
        costs = self._scale * prefill + facts.loads[Load.DECODE_BLOCKS]
        order = rank(costs, _ANY_DIFFERENCE, rng)
        return Choice(facts.slots.take(order), costs, Reason.KV_OVERLAP)


WITH_DYNAMO_COST: Mapping[str, Registration] = MappingProxyType(
    {**POLICIES, DynamoCost.name: register(DynamoCostParameters, DynamoCost)}
)
