"""`approximate`: by what was sent where, whatever the replicas say."""

from random import Random

import numpy as np

from router.core.load_totals import Load
from router.policies.approximate import Approximate, ApproximateParameters
from router.policies.base import Facts, Reason


def facts(history: list[int], confirmed: list[int]) -> Facts:
    candidates = len(history)
    tiers = np.array([confirmed] * 3, np.int32)
    return Facts(
        slots=np.arange(candidates),
        tiers=tiers,
        speculative=tiers[0],
        loads=np.zeros((len(Load), candidates)),
        prompt_tokens=6400,
        block_size=16,
        history=np.array(history, np.int32),
    )


def test_goes_where_the_prefix_was_sent_and_not_where_it_is() -> None:
    policy = Approximate(ApproximateParameters())
    choice = policy.choose(facts(history=[0, 300, 0], confirmed=[400, 0, 0]), Random(0))
    assert choice.ranked.item(0) == 1
    assert choice.reason is Reason.HISTORY_OVERLAP


def test_asks_for_a_history_with_its_own_bounds() -> None:
    policy = Approximate(ApproximateParameters(ttl_s=7.0, max_blocks_per_replica=9))
    assert (policy.history.ttl_s, policy.history.max_blocks_per_replica) == (7.0, 9)
