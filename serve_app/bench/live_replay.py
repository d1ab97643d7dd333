"""`scripts/bench_live`: one workload through the live application and through replay.

Blocks of the workload become token ids, always the same ones for a block, so that engines find in
their caches what replay finds.
"""

import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, combinations
from random import Random
from statistics import fmean

import aiohttp

from replicas.engines.sim_timing import latency_of
from router.configuration import SimConfig
from router.policies.registry import PolicySpec
from router.replay.figures import Limits, figures
from router.replay.generated import BLOCK_TOKENS
from router.replay.plan import FleetPlan, ReplayPlan
from router.replay.simulation import Simulation
from router.replay.trace import Chainer, TraceRow
from serve_app.bench.chat_client import SESSION_HEADER

_FIRST_ID, _VOCABULARY = 16, 2000
"""Ids that the tiny model has, without its special ones."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Of the live application. `late_s`: how long after its time the request was sent."""

    ttft_ms: float
    prompt_tokens: int
    cached_tokens: int
    late_s: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """One policy on one side; `reuse` is the share of prompt tokens found in a cache."""

    reuse: float
    mean_ttft_ms: float
    failed: int = 0
    latest_s: float = 0.0


@dataclass(frozen=True, slots=True)
class TraceClient:
    """Sends rows as completions of token ids, as any client of OpenAI's API does."""

    session: aiohttp.ClientSession
    url: str
    model: str

    async def send_all(self, rows: Sequence[TraceRow]) -> list[Answer | None]:
        """Each at its time, whatever became of others; None for what failed."""
        started_s = time.perf_counter()
        return await asyncio.gather(*(self._send_at(started_s + row.at_s, row) for row in rows))

    async def _send_at(self, at_s: float, row: TraceRow) -> Answer | None:
        await asyncio.sleep(at_s - time.perf_counter())
        sent_s = time.perf_counter()
        headers = {} if row.session is None else {SESSION_HEADER: row.session}
        try:
            async with self.session.post(
                f"{self.url}/v1/completions", json=self._body(row), headers=headers
            ) as response:
                return await _read(response, sent_s, sent_s - at_s)
        except aiohttp.ClientError:
            return None

    def _body(self, row: TraceRow) -> dict[str, object]:
        return {
            "model": self.model,
            "prompt": token_ids(row),
            "max_tokens": row.output_tokens,
            "ignore_eos": True,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }


def token_ids(row: TraceRow) -> list[int]:
    """Of its prompt: whole blocks."""
    return list(chain.from_iterable(map(_ids_of, row.block_ids)))


def live_outcome(answers: Sequence[Answer | None]) -> Outcome:
    done = [answer for answer in answers if answer is not None]
    return Outcome(
        sum(answer.cached_tokens for answer in done) / sum(answer.prompt_tokens for answer in done),
        fmean(answer.ttft_ms for answer in done),
        len(answers) - len(done),
        max(answer.late_s for answer in done),
    )


def replayed_outcome(
    rows: Sequence[TraceRow], policy: PolicySpec, replicas: int, sim: SimConfig
) -> Outcome:
    """On as many replicas with the same cache and timing."""
    fleet = FleetPlan(replicas, sim.total_blocks, sim.block_size, latency_of(sim))
    requests = list(Chainer(BLOCK_TOKENS, sim.block_size).requests(rows))
    found = figures(Simulation(ReplayPlan(policy, fleet), requests).run(), Limits()).all
    return Outcome(found.reuse, found.mean_ttft_ms, found.requests - found.completed_requests)


def in_another_order(
    live: Mapping[str, Outcome], replayed: Mapping[str, Outcome], tolerance: float
) -> list[tuple[str, str]]:
    """Pairs of which replay has the first ahead in mean TTFT by more than that share of it, and the
    live application does not have it ahead at all."""
    by_replay = sorted(replayed, key=lambda name: replayed[name].mean_ttft_ms)
    return [
        (better, worse)
        for better, worse in combinations(by_replay, 2)
        if replayed[worse].mean_ttft_ms > (1 + tolerance) * replayed[better].mean_ttft_ms
        and live[worse].mean_ttft_ms <= live[better].mean_ttft_ms
    ]


@lru_cache(maxsize=16_384)
def _ids_of(block_id: int) -> tuple[int, ...]:
    """[BLOCK_TOKENS]"""
    return tuple(Random(block_id).choices(range(_FIRST_ID, _VOCABULARY), k=BLOCK_TOKENS))


async def _read(response: aiohttp.ClientResponse, sent_s: float, late_s: float) -> Answer | None:
    if response.status != 200:
        return None
    first_s, last = 0.0, b"{}"
    async for line in response.content:
        if line.startswith(b"data: {"):
            first_s = first_s or time.perf_counter()
            last = line[6:]
    usage = json.loads(last).get("usage")
    if usage is None:  # an error event ended the stream
        return None
    cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    return Answer(1000 * (first_s - sent_s), usage["prompt_tokens"], cached_tokens, late_s)
