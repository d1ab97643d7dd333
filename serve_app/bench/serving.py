"""`scripts/bench_serve`: two real engines with small caches, the same talks through every arm.

A run has two halves. In the first the caches begin cold. Then one replica is killed, and when a
cold one has taken its place, other talks follow of which one system prompt has 40 %.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from statistics import median

from router.core.hashing import hash_blocks
from router.replay.lru_blocks import LruBlocks, Served
from serve_app.bench.arms import Arm, in_order
from serve_app.bench.cache_oracle import Oracle
from serve_app.bench.chat_client import Answered, ChatClient
from serve_app.bench.conversations import (
    Author,
    Conversation,
    Shape,
    Turn,
    drawn,
    taking_turns,
    with_hot,
    zipf,
)
from serve_app.bench.live import LiveApplication

BLOCK_SIZE, TOTAL_BLOCKS = 32, 200
OUTPUT_TOKENS = 16
USERS = 8
HOT_SHARE = 0.4
SHAPE = Shape(
    conversations=24,
    turns=6,
    systems=6,
    system_tokens=500,
    question_tokens=86,
    answer_tokens=40,
)
"""Eight talks at once and all system prompts come to 1.5 times one replica's blocks."""

PRICES = {"prefill_ms_per_token": 0.1, "prefill_base_ms": 8.0}
"""Of the tiny model on two cores that it shares, as in `configs/local.yaml`."""

ARGS = {
    "models": [
        {
            "name": "tiny",
            "replicas": 2,
            "cpus_per_replica": 0.5,
            "kv_cache_gib": 0.25,
            "engine_args": {
                "max_model_len": 4096,
                "block_size": BLOCK_SIZE,
                "num_gpu_blocks_override": TOTAL_BLOCKS,
            },
        }
    ],
    "ingress": {"cpus_per_replica": 0.25},
}

Chains = dict[tuple[str, int], Served]


@dataclass(frozen=True, slots=True)
class Script:
    """The talks of one seed, both halves, and every turn as the engines see it.

    `orders` are all turns of each half, as they are sent.
    """

    halves: tuple[tuple[Conversation, ...], tuple[Conversation, ...]]
    orders: tuple[tuple[Turn, ...], tuple[Turn, ...]]
    served: Chains

    def working_set(self) -> float:
        """Blocks of all system prompts and as many talks as go on at once, over one cache's."""
        talks = self.halves[0]
        own = [self._last_blocks(talk) - _system_blocks() for talk in talks]
        live = USERS * sum(own) / len(own) + SHAPE.systems * _system_blocks()
        return live / TOTAL_BLOCKS

    def _last_blocks(self, talk: Conversation) -> int:
        return len(self.served[talk.name, talk.turns - 1].chain)


@dataclass(frozen=True, slots=True)
class Run:
    """One arm on one script: the answers of both halves, and how long each took in s."""

    arm: str
    halves: tuple[list[Answered], list[Answered]]
    walls_s: tuple[float, float]

    def reuse(self, half: int) -> float:
        """Share of prompt tokens that the engines took from their caches."""
        answers = self.halves[half]
        return cached_tokens(answers) / sum(answer.prompt_tokens for answer in answers)

    def computed_tokens(self) -> int:
        return sum(answer.computed_tokens for half in self.halves for answer in half)


async def written(client: ChatClient, author: Author, seed: int) -> Script:
    """The script of one seed, rendered by the application."""
    rng = Random(seed)
    systems = author.systems(SHAPE)
    shares = zipf(SHAPE.systems)
    hot = with_hot(shares, SHAPE.systems - 1, HOT_SHARE)
    first = _talks(author, f"{seed}-first", systems, drawn(shares, SHAPE.conversations, rng))
    second = _talks(author, f"{seed}-second", systems, drawn(hot, SHAPE.conversations, rng))
    served = {
        (talk.name, number): _served(await client.token_ids(Turn(talk, number)))
        for talk in (*first, *second)
        for number in range(talk.turns)
    }
    orders = (tuple(taking_turns(first, USERS, rng)), tuple(taking_turns(second, USERS, rng)))
    return Script((first, second), orders, served)


async def run_arm(live: LiveApplication, client: ChatClient, script: Script, arm: Arm) -> Run:
    """Both halves, from cold caches, with the loss of a replica between them."""
    await asyncio.to_thread(live.reset_caches)
    first = await in_order(client, script.orders[0], USERS, arm)
    await asyncio.to_thread(live.kill_replica)
    second = await in_order(client, script.orders[1], USERS, arm)
    return Run(arm.name, (first, second), (_wall_s(first), _wall_s(second)))


def best_tokens(run: Run, script: Script, total_blocks: int, rng: Random) -> tuple[int, int]:
    """The oracle's cached tokens for both halves, in the order in which the run sent its turns.

    It begins the second half with what the surviving replica had by then and with a cold one.
    """
    first, second = ([answer for answer in half if answer.is_ok] for half in run.halves)
    survivor = _survivor(first, second)
    empty = LruBlocks(total_blocks)
    oracle = _oracle(script, first, (empty, empty))
    places = [int(answer.replica != survivor) for answer in first]
    kept, _ = oracle.caches_after(places)
    later = _oracle(script, second, (kept, empty))
    later_places = [int(answer.replica != survivor) for answer in second]
    return (
        oracle.best(places, rng) * BLOCK_SIZE,
        later.best(later_places, rng) * BLOCK_SIZE,
    )


def cached_tokens(answers: Sequence[Answered]) -> int:
    return sum(answer.cached_tokens for answer in answers)


def failures(run: Run) -> int:
    return sum(not answer.is_ok for half in run.halves for answer in half)


def fitted_prices(answers: Sequence[Answered]) -> dict[str, float]:
    """TTFT as a line over the computed tokens, by the median of slopes (Theil and Sen)."""
    points = [(answer.computed_tokens, answer.ttft_ms) for answer in answers]
    slopes = [
        (b[1] - a[1]) / (b[0] - a[0]) for a in points for b in points if abs(b[0] - a[0]) >= 64
    ]
    slope = median(slopes)
    base = median(ms - slope * tokens for tokens, ms in points)
    return {"ms_per_token": round(slope, 3), "base_ms": round(base, 1)}


def _talks(
    author: Author, prefix: str, systems: Sequence[str], numbers: Sequence[int]
) -> tuple[Conversation, ...]:
    return tuple(
        author.conversation(f"{prefix}-{index}", number, systems[number], SHAPE)
        for index, number in enumerate(numbers)
    )


def _served(token_ids: list[int]) -> Served:
    packed = b"".join(token.to_bytes(4, "little") for token in token_ids)
    chain = tuple(map(int, hash_blocks(packed, BLOCK_SIZE)))
    in_cache = len(token_ids) + OUTPUT_TOKENS - 1  # the last token is drawn, never computed
    return Served(chain, -(-in_cache // BLOCK_SIZE), len(token_ids))


def _system_blocks() -> int:
    return SHAPE.system_tokens // BLOCK_SIZE


def _survivor(first: Sequence[Answered], second: Sequence[Answered]) -> str:
    """The replica that was there in both halves."""
    before = {answer.replica for answer in first}
    return next(iter(before & {answer.replica for answer in second}), min(before))


def _oracle(script: Script, answers: Sequence[Answered], caches: tuple[LruBlocks, ...]) -> Oracle:
    turns = [answer.turn for answer in answers]
    names = [turn.conversation.name for turn in turns]
    served = [script.served[turn.conversation.name, turn.number] for turn in turns]
    return Oracle(caches, tuple(served), tuple(names), BLOCK_SIZE)


def _wall_s(answers: Sequence[Answered]) -> float:
    ends = [answer.sent_s + answer.total_ms / 1000 for answer in answers]
    return max(ends) - min(answer.sent_s for answer in answers)
