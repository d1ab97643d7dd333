"""The calibration compares like with like, on the mocker itself where it is installed."""

import os
from random import Random

import pytest

from serve_app.bench.calibration import (
    KEYS,
    Fleet,
    differences,
    figures,
    ours,
    random_rows,
    reference_rows,
)

FLEET = Fleet(replicas=1, blocks=24, block_size=4, max_batched_tokens=64, max_sequences=8)


def test_round_robin_gives_each_replica_its_turn() -> None:
    """Equal prompts meet again only where the turn comes round to the same replica."""
    rows = [
        {"timestamp": 1000 * turn, "input_length": 9, "output_length": 2, "hash_ids": [1, 2, 3]}
        for turn in range(4)
    ]
    fleet = Fleet(2, 24, block_size=4, max_batched_tokens=64, max_sequences=8)
    assert [one.sequence.cached_tokens for one in ours(rows, fleet)] == [0, 0, 8, 8]


def test_figures_follow_their_definitions() -> None:
    (one,) = ours(
        [{"timestamp": 5, "input_length": 8, "output_length": 3, "hash_ids": [1, 2]}], FLEET
    )
    found = figures([one])
    assert tuple(found) == KEYS
    assert found["mean_ttft_ms"] == pytest.approx(16.6229, abs=1e-3)
    assert found["mean_e2e_latency_ms"] == pytest.approx(
        found["mean_ttft_ms"] + 2 * found["mean_tpot_ms"]
    )


def test_the_reference_workload_is_conversations_that_grow() -> None:
    rows = reference_rows(0, 4.0)
    assert len(rows) == 3200
    assert {row["input_length"] for row in rows} == {2048 + 512 + 640 * turn for turn in range(8)}


@pytest.mark.parametrize("seed", range(10))
def test_random_traces_agree_request_by_request(seed: int) -> None:
    os.environ.setdefault("DYN_LOG", "error")
    pytest.importorskip("dynamo._core")
    rows = random_rows(Random(seed), FLEET)
    assert differences(rows, FLEET) == 0
