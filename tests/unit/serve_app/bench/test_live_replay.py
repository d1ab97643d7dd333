"""What the comparison of replay with the live application is made of."""

from random import Random

import pytest

from router.configuration import SimConfig
from router.policies.registry import PolicySpec
from router.replay.generated import BLOCK_TOKENS, sessions
from router.replay.trace import TraceRow
from serve_app.bench.live_replay import (
    Answer,
    Outcome,
    in_another_order,
    live_outcome,
    replayed_outcome,
    token_ids,
)


def timed(**mean_ttft_ms: float) -> dict[str, Outcome]:
    return {policy: Outcome(0.5, ms) for policy, ms in mean_ttft_ms.items()}


def test_an_order_counts_only_where_replay_foretells_a_difference() -> None:
    foretold = timed(a=100.0, b=101.0, c=150.0)
    assert in_another_order(timed(a=90.0, b=80.0, c=140.0), foretold, 0.03) == []
    assert in_another_order(timed(a=90.0, b=80.0, c=85.0), foretold, 0.03) == [("a", "c")]


def test_reuse_is_of_all_tokens_and_what_failed_is_counted() -> None:
    answers = [Answer(10.0, 100, 80, 0.0), None, Answer(30.0, 300, 0, 0.2)]
    assert live_outcome(answers) == Outcome(0.2, 20.0, failed=1, latest_s=0.2)


def test_replay_takes_cache_and_timing_of_the_configuration() -> None:
    rows = sessions(Random(1), 4.0, sessions=3, turns=3)
    slow = SimConfig(prefill_ms_per_token=1.0)
    quick, slowly = (
        replayed_outcome(rows, PolicySpec("round_robin"), 2, sim) for sim in (SimConfig(), slow)
    )
    assert quick.reuse == pytest.approx(slowly.reuse, abs=0.2)
    assert slowly.mean_ttft_ms > 5 * quick.mean_ttft_ms


def test_equal_blocks_become_equal_tokens() -> None:
    one, other = (token_ids(TraceRow(0.0, 192, 4, blocks)) for blocks in ([1, 2, 3], [1, 2, 4]))
    assert len(one) == len(other) == 3 * BLOCK_TOKENS
    assert one[: 2 * BLOCK_TOKENS] == other[: 2 * BLOCK_TOKENS]
    assert one[2 * BLOCK_TOKENS :] != other[2 * BLOCK_TOKENS :]
