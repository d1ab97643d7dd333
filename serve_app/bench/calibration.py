"""The simulator beside NVIDIA Dynamo's mocker: the same trace, round robin, the same figures."""

import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from random import Random
from statistics import fmean
from typing import Any

import numpy as np

from replicas.sim.alone import Served, serve_alone
from replicas.sim.replica import SimReplica
from replicas.sim.scheduler import SchedulerLimits
from replicas.sim.sequence import SimSequence
from router.core.types import BlockHash

BLOCK_SIZE = 64
ROWS = ((4.0, 2048), (4.0, 4096), (8.0, 2048))
"""Conversations a second, and blocks a replica, of the reference workload."""

Row = dict[str, Any]
Figures = dict[str, float]
KEYS = (
    "prefix_cache_reused_ratio",
    "mean_ttft_ms",
    "p99_ttft_ms",
    "mean_tpot_ms",
    "mean_e2e_latency_ms",
    "p99_e2e_latency_ms",
)


@dataclass(frozen=True, slots=True)
class Fleet:
    """Equal replicas behind round robin."""

    replicas: int
    blocks: int
    block_size: int = BLOCK_SIZE
    max_batched_tokens: int = 8192
    max_sequences: int = 256


def reference_rows(seed: int, rate: float) -> list[Row]:
    """400 conversations of 8 turns on 12 system prompts, as lines of a Mooncake trace."""
    rng, ids, rows, start_s = Random(seed), count(10**6), [], 0.0
    systems = [[next(ids) for _ in range(32)] for _ in range(12)]
    shares = [1 / (rank + 1) for rank in range(12)]
    for _ in range(400):
        start_s += rng.expovariate(rate)
        prefix, at_s = list(rng.choices(systems, shares)[0]), start_s
        for _ in range(8):
            prefix = prefix + [next(ids) for _ in range(8)]
            rows.append(_row(int(at_s * 1000), len(prefix) * BLOCK_SIZE, 128, prefix))
            prefix = prefix + [next(ids), next(ids)]
            at_s += rng.expovariate(1 / 6) + 2
    return sorted(rows, key=lambda row: row["timestamp"])


def random_rows(rng: Random, fleet: Fleet) -> list[Row]:
    """A few requests that share prefixes in a pool that is tight for them."""
    rows: list[Row] = []
    prefixes: list[list[int]] = [[]]
    ids, at_ms = count(1), 0
    for _ in range(rng.randint(2, 40)):
        at_ms += rng.choice((2, 7, 23, 60, 200))
        shared = rng.choice(prefixes)
        prompt = shared[: rng.randint(0, len(shared))]
        prompt = prompt + [next(ids) for _ in range(rng.randint(1, 6))]
        tokens = len(prompt) * fleet.block_size - rng.choice((0, 0, 1, fleet.block_size - 1))
        output = min(rng.randint(1, 40), fleet.blocks * fleet.block_size - tokens)
        if output > 0:
            rows.append(_row(at_ms, tokens, output, prompt))
            prefixes.append(prompt)
    return rows


def ours(rows: Sequence[Row], fleet: Fleet) -> list[Served]:
    """Each request as our simulator serves it, in the trace's order."""
    served: list[Served] = []
    for first in range(fleet.replicas):
        arrivals = [
            (row["timestamp"] / 1000, _sequence(row, fleet))
            for row in rows[first :: fleet.replicas]
        ]
        served += serve_alone(_replica(fleet), arrivals)
    order = [i for first in range(fleet.replicas) for i in range(first, len(rows), fleet.replicas)]
    return [one for _, one in sorted(zip(order, served, strict=True), key=lambda pair: pair[0])]


def theirs(rows: Sequence[Row], fleet: Fleet) -> tuple[Figures, list[Row]]:
    """The mocker's summary, and its requests in order of arrival (times in ms)."""
    from dynamo import _core

    engine = {
        "backend": "vllm",
        "num_gpu_blocks": fleet.blocks,
        "block_size": fleet.block_size,
        "max_num_batched_tokens": fleet.max_batched_tokens,
        "max_num_seqs": fleet.max_sequences,
    }
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
        file.flush()
        result = _core.run_mocker_trace_replay(
            [file.name],
            extra_engine_args=_core._normalize_mocker_config({"engine": engine}),
            num_workers=fleet.replicas,
            router_mode="round_robin",
            trace_block_size=fleet.block_size,
            capture_per_request=True,
        )
    requests = sorted(result.per_request, key=lambda request: request["arrival_time_ms"])
    return {key: float(result.summary[key]) for key in KEYS}, requests


def figures(served: Sequence[Served]) -> Figures:
    """The summary of what we served, by the mocker's definitions."""
    sequences = [one.sequence for one in served]
    ttft_ms = [1000 * (one.first_token_s - one.arrived_s) for one in served]
    e2e_ms = [1000 * (one.end_s - one.arrived_s) for one in served]
    tpot_ms = [
        1000 * (one.end_s - one.first_token_s) / (one.sequence.max_tokens - 1)
        for one in served
        if one.sequence.max_tokens > 1
    ]
    reused = sum(sequence.most_cached_tokens for sequence in sequences)
    values = (
        reused / sum(sequence.prompt_tokens for sequence in sequences),
        fmean(ttft_ms),
        _p99(ttft_ms),
        fmean(tpot_ms),
        fmean(e2e_ms),
        _p99(e2e_ms),
    )
    return dict(zip(KEYS, values, strict=True))


def differences(rows: Sequence[Row], fleet: Fleet, tolerance_ms: float = 0.01) -> int:
    """Requests of which both say something else: tokens reused, first token, end. One replica."""
    assert fleet.replicas == 1, "requests of one moment have no order across replicas"
    _, requests = theirs(rows, fleet)
    return sum(
        one.sequence.most_cached_tokens != request["reused_input_tokens"]
        or abs(1000 * (one.first_token_s - one.arrived_s) - request["ttft_ms"]) > tolerance_ms
        or abs(1000 * (one.end_s - one.arrived_s) - request["e2e_latency_ms"]) > tolerance_ms
        for one, request in zip(ours(rows, fleet), requests, strict=True)
    )


def _row(at_ms: int, tokens: int, output_tokens: int, hash_ids: list[int]) -> Row:
    return {
        "timestamp": at_ms,
        "input_length": tokens,
        "output_length": output_tokens,
        "hash_ids": hash_ids,
    }


def _sequence(row: Row, fleet: Fleet) -> SimSequence:
    full_blocks = row["input_length"] // fleet.block_size
    hashes = [BlockHash(block_id) for block_id in row["hash_ids"][:full_blocks]]
    return SimSequence(row["input_length"], row["output_length"], hashes)


def _replica(fleet: Fleet) -> SimReplica:
    limits = SchedulerLimits(fleet.block_size, fleet.max_batched_tokens, fleet.max_sequences)
    return SimReplica.create(fleet.blocks, limits)


def _p99(values: Sequence[float]) -> float:
    return float(np.percentile(values, 99, method="nearest"))
