"""`scripts/bench_balance`: eight simulated replicas in real time, near what they carry.

Simulated replicas wait instead of computing, so that eight fit on this machine. They are slow on
purpose: tokens that cost some ten times what a model of 70 billion parameters takes, in prompts a
tenth as long, make the same queues from a tenth of the requests, and the host has time left.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from serve_app.bench.arms import Timed
from serve_app.bench.chat_client import Answered, ChatClient
from serve_app.bench.conversations import Author, Conversation, Shape, Turn, drawn, zipf

REPLICAS = 8
OUTPUT_TOKENS = 12
TURN_GAP_S = 4.0
LOAD = 0.8
SLO_TTFT_MS, SLO_TPOT_MS = 1000.0, 100.0
SHAPE = Shape(
    conversations=0,
    turns=6,
    systems=12,
    system_tokens=768,
    question_tokens=96,
    answer_tokens=40,
)
RAMP_S = SHAPE.turns * TURN_GAP_S

SIM = {
    "total_blocks": 256,
    "block_size": 32,
    "max_model_len": 8192,
    "prefill_ms_per_token": 2.0,
    "prefill_base_ms": 30.0,
    "decode_ms_per_token": 20.0,
    "max_num_batched_tokens": 2048,
}
PRICES = {
    "prefill_ms_per_token": SIM["prefill_ms_per_token"],
    "prefill_base_ms": SIM["prefill_base_ms"],
}
"""The simulator's own: what a user would measure."""

ARGS = {
    "models": [
        {
            "name": "sim",
            "engine": "sim",
            "replicas": REPLICAS,
            "cpus_per_replica": 0.1,
            "sim": SIM,
        }
    ],
    "ingress": {"cpus_per_replica": 0.25},
}


@dataclass(frozen=True, slots=True)
class Capacity:
    """What the replicas carry where nothing is computed that was computed anywhere before.

    `engine_s`: mean time that a request needs of an engine that it has for itself.
    """

    engine_s: float

    @property
    def requests_per_s(self) -> float:
        return REPLICAS / self.engine_s


@dataclass(frozen=True, slots=True)
class Level:
    """How one arm did. `goodput_rps`: requests within both SLOs per second of the schedule."""

    ttft_p50_ms: float
    ttft_p90_ms: float
    goodput_rps: float
    reuse: float
    failed: int


async def capacity(client: ChatClient, author: Author) -> Capacity:
    """From the lengths of one conversation as the application renders it."""
    text = author.text(SHAPE.system_tokens)
    talk = author.conversation("length", 0, text, SHAPE)
    ids = [await client.token_ids(Turn(talk, number)) for number in range(SHAPE.turns)]
    lengths = [len(each) for each in ids]
    known = [SHAPE.system_tokens, *lengths[:-1]]
    block = int(SIM["block_size"])
    uncached = [length - old // block * block for length, old in zip(lengths, known, strict=True)]
    prefill_ms = SIM["prefill_base_ms"] + SIM["prefill_ms_per_token"] * sum(uncached) / len(ids)
    decode_ms = SIM["decode_ms_per_token"] * (OUTPUT_TOKENS - 1)
    return Capacity((prefill_ms + decode_ms) / 1000)


def schedule(
    author: Author, rate_rps: float, seconds: float, prefix: str, rng: Random
) -> list[Timed]:
    """Conversations that begin as a Poisson process, and whose turns follow after random pauses.

    It takes `RAMP_S` until as many are under way as later.
    """
    systems = author.systems(SHAPE)
    starts = _starts(rate_rps / SHAPE.turns, seconds, rng)
    numbers = drawn(zipf(SHAPE.systems), len(starts), rng)
    timed: list[Timed] = []
    for index, (start_s, number) in enumerate(zip(starts, numbers, strict=True)):
        talk = author.conversation(f"{prefix}-{index}", number, systems[number], SHAPE)
        timed += _turns(talk, start_s, seconds, rng)
    return sorted(timed, key=lambda each: each.at_s)


def level(answers: Sequence[Answered], seconds: float) -> Level:
    ttfts = sorted(answer.ttft_ms if answer.is_ok else float("inf") for answer in answers)
    within = sum(
        answer.is_ok and answer.ttft_ms <= SLO_TTFT_MS and answer.tpot_ms <= SLO_TPOT_MS
        for answer in answers
    )
    prompt_tokens = sum(answer.prompt_tokens for answer in answers)
    cached_tokens = sum(answer.cached_tokens for answer in answers)
    return Level(
        ttft_p50_ms=ttfts[len(ttfts) // 2],
        ttft_p90_ms=ttfts[len(ttfts) * 9 // 10],
        goodput_rps=within / seconds,
        reuse=cached_tokens / max(prompt_tokens, 1),
        failed=sum(not answer.is_ok for answer in answers),
    )


def is_first(ours: Level, others: Sequence[Level]) -> dict[str, bool]:
    """Whether nobody else is better, on each of the three."""
    return {
        "ttft_p50_ms": all(ours.ttft_p50_ms <= other.ttft_p50_ms for other in others),
        "ttft_p90_ms": all(ours.ttft_p90_ms <= other.ttft_p90_ms for other in others),
        "goodput_rps": all(ours.goodput_rps >= other.goodput_rps for other in others),
    }


def _starts(conversations_per_s: float, seconds: float, rng: Random) -> list[float]:
    at_s, starts = 0.0, []
    while (at_s := at_s + rng.expovariate(conversations_per_s)) < seconds:
        starts.append(at_s)
    return starts


def _turns(talk: Conversation, start_s: float, seconds: float, rng: Random) -> list[Timed]:
    """Those turns that fall into the measured time."""
    timed, at_s = [], start_s
    for number in range(talk.turns):
        timed.append(Timed(at_s, Turn(talk, number)))
        at_s += rng.uniform(0.5, 1.5) * TURN_GAP_S
    return [each for each in timed if each.at_s < seconds]
