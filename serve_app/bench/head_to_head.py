"""The same workload through NVIDIA Dynamo's router and through ours, on equal simulated engines."""

import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from random import Random
from statistics import fmean

from router.replay.figures import Limits, figures
from router.replay.generated import BLOCK_TOKENS, sessions
from router.replay.plan import Failure, FleetPlan, ReplayPlan, parse_policy
from router.replay.simulation import Simulation
from router.replay.summary import summary
from router.replay.trace import Chainer, TraceRow
from serve_app.bench.dynamo_cost import WITH_DYNAMO_COST, DynamoCost

ROWS = ((4.0, 2048), (4.0, 4096), (8.0, 2048))
"""Conversations a second, and blocks a replica, of the reference workload."""
REPLICAS = 8
COMPARED = ("prefix_cache_reused_ratio", "mean_ttft_ms", "p99_ttft_ms", "mean_e2e_latency_ms")

Summary = Mapping[str, float]

DISTURBANCES: Mapping[str, Mapping[str, object]] = {
    "restart": {"failures": (Failure(50.0, 0, down_s=10.0),)},
    "cleared": {"failures": (Failure(50.0, None),)},
    "ingresses": {"ingresses": 4},
}
"""What happens in the middle of the reference workload's first row, or all the way."""
_APART: Mapping[str, object] = {"is_shared": False}
"""Several of Dynamo's routers know nothing of each other's requests unless told to."""


def ours(
    rows: Sequence[TraceRow],
    policy: str,
    blocks: int,
    trace_block_size: int = BLOCK_TOKENS,
    **changes: object,
) -> Summary:
    fleet = FleetPlan(REPLICAS, blocks, 64)
    plan = ReplayPlan(parse_policy(policy), fleet, policies=WITH_DYNAMO_COST, **changes)  # type: ignore[arg-type]
    requests = list(Chainer(trace_block_size, 64).requests(rows))
    return summary(figures(Simulation(plan, requests).run(), Limits()))


def disturbed(
    several: Sequence[Sequence[TraceRow]], policy: str, blocks: int, disturbance: str
) -> Summary:
    """Means over workloads."""
    changes = dict(DISTURBANCES[disturbance])
    if policy == DynamoCost.name:
        changes |= _APART
    return mean_of([ours(rows, policy, blocks, BLOCK_TOKENS, **changes) for rows in several])


def theirs(
    rows: Sequence[TraceRow], blocks: int, trace_block_size: int = BLOCK_TOKENS
) -> Iterator[tuple[str, Summary]]:
    """Dynamo's default router, and the one with its best constant, `prefill_load_scale=8`."""
    from dynamo import _core

    engine = {"num_gpu_blocks": blocks, "block_size": 64, "backend": "vllm"}
    routers = {
        "dynamo_default": _core.KvRouterConfig(),
        "dynamo_tuned": _core.KvRouterConfig(prefill_load_scale=8.0),
    }
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
        file.writelines(_line(row) for row in rows)
        file.flush()
        for name, config in routers.items():
            result = _core.run_mocker_trace_replay(
                [file.name],
                extra_engine_args=_core._normalize_mocker_config({"engine": engine}),
                num_workers=REPLICAS,
                router_mode="kv_router",
                router_config=config,
                trace_block_size=trace_block_size,
            )
            yield name, {key: float(result.summary[key]) for key in COMPARED}


def reference(seed: int, rate: float) -> list[TraceRow]:
    return sessions(Random(seed), rate)


def mean_of(several: Sequence[Summary]) -> Summary:
    return {key: fmean(each[key] for each in several) for key in COMPARED}


def ratios(ours: Summary, theirs: Summary) -> dict[str, float]:
    """Ours / theirs; of reuse more than 1 is better, of times less."""
    return {key: round(ours[key] / theirs[key], 3) for key in COMPARED}


def losses(disturbed: Summary, calm: Summary) -> dict[str, float]:
    """What a disturbance costs: by how much reuse falls, and the times grow."""
    reuse, *times = COMPARED
    lost = {reuse: round(calm[reuse] - disturbed[reuse], 4)}
    return lost | {key: round(disturbed[key] - calm[key], 2) for key in times}


def _line(row: TraceRow) -> str:
    fields = {
        "timestamp": round(row.at_s * 1000),
        "input_length": row.prompt_tokens,
        "output_length": row.output_tokens,
        "hash_ids": list(row.block_ids),
    }
    return json.dumps(fields) + "\n"
