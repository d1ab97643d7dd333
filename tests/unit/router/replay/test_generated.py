"""The generated workloads: seeded, ordered, and shaped as they say."""

from random import Random

import pytest

from router.replay.bounds import bounds
from router.replay.generated import BLOCK_TOKENS, WORKLOADS, sessions
from router.replay.trace import Chainer


def written_reference(seed: int, rate: float) -> list[tuple[int, int, int, list[int]]]:
    """The reference workload as its definition has it: 12 systems, 400 conversations, 8 turns."""
    rng = Random(seed)
    next_id = [10**6]

    def fresh(count: int) -> list[int]:
        next_id[0] += count
        return list(range(next_id[0] - count, next_id[0]))

    systems = [fresh(32) for _ in range(12)]
    weights = [1 / (rank + 1) for rank in range(12)]
    rows, start = [], 0.0
    for _ in range(400):
        start += rng.expovariate(rate)
        prefix, at = list(rng.choices(systems, weights)[0]), start
        for _ in range(8):
            prefix = prefix + fresh(8)
            rows.append((int(at * 1000), len(prefix) * 64, 128, list(prefix)))
            prefix = prefix + fresh(2)
            at += rng.expovariate(1 / 6.0) + 2
    rows.sort(key=lambda row: row[0])
    return rows


@pytest.mark.parametrize(("seed", "rate"), [(0, 4.0), (7, 8.0)])
def test_sessions_are_the_reference_workload_row_for_row(seed: int, rate: float) -> None:
    made = [
        (round(row.at_s * 1000), row.prompt_tokens, row.output_tokens, list(row.block_ids))
        for row in sessions(Random(seed), rate)
    ]
    assert made == written_reference(seed, rate)


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_seed_makes_one_workload_in_order_of_time(name: str) -> None:
    make = WORKLOADS[name]
    rows = make(Random(3), 4.0)
    assert rows == make(Random(3), 4.0)
    assert rows != make(Random(4), 4.0)
    assert [row.at_s for row in rows] == sorted(row.at_s for row in rows)
    assert all(row.prompt_tokens >= 1 and row.output_tokens >= 1 for row in rows)


@pytest.mark.parametrize(
    ("name", "least", "most"),
    [
        ("sessions", 0.8, 0.9),
        ("shared_prefix", 0.8, 0.9),
        ("rag", 0.3, 0.9),
        ("agents", 0.8, 1.0),
        ("unique", 0.0, 0.0),
    ],
)
def test_a_workload_repeats_as_much_as_it_is_there_for(
    name: str, least: float, most: float
) -> None:
    rows = WORKLOADS[name](Random(1), 4.0)
    requests = list(Chainer(BLOCK_TOKENS, BLOCK_TOKENS).requests(rows))
    assert least <= bounds(requests, 1000, BLOCK_TOKENS).infinite <= most
