"""The ways of routing that are compared, and the loops that put the same turns through each."""

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from serve_app.bench.chat_client import Answered, ChatClient
from serve_app.bench.conversations import Turn

SessionOf = Callable[[Turn], str | None]
Parameters = Mapping[str, float | None]


@dataclass(frozen=True, slots=True)
class Arm:
    """A policy, and what the client sends as its session: nothing, its conversation, its system."""

    name: str
    policy: str
    session_of: SessionOf = lambda _: None
    parameters: Parameters = field(default_factory=dict)

    def user_config(self, index_deadline_ms: float) -> dict[str, object]:
        return {
            "policy": self.policy,
            "parameters": dict(self.parameters),
            "index_deadline_ms": index_deadline_ms,
            "expose_decisions": True,
            "access_log": False,
        }


_UNBOUNDED: Parameters = {"load_factor": None}
"""Sticky whatever the load."""


def _talk(turn: Turn) -> str:
    return turn.conversation.name


def arms(prices: dict[str, float], seed: int) -> tuple[Arm, ...]:
    """`prices` are the replicas' own, for `kv_aware`. Another seed hashes to other replicas.

    `power_of_two` is Serve's rule on the index's exact bookings instead of probed queues.
    """
    return (
        Arm("kv_aware", "kv_aware", parameters=prices),
        Arm("sticky_conversation", "session_affinity", _talk, _UNBOUNDED),
        Arm(
            "system_hash",
            "session_affinity",
            lambda turn: f"{seed}-{turn.conversation.system}",
            _UNBOUNDED,
        ),
        Arm("power_of_two", "power_of_two"),
        Arm("round_robin", "round_robin"),
    )


async def in_turns(client: ChatClient, turns: Iterable[Turn], arm: Arm) -> list[Answered]:
    """One request at a time."""
    return [await client.ask(turn, arm.session_of(turn)) for turn in turns]


async def in_order(
    client: ChatClient, turns: Iterable[Turn], most: int, arm: Arm
) -> list[Answered]:
    """At most `most` in flight, each sent after all earlier ones and its talk's last answer.

    What a cache can reuse depends on the order, so arms are compared on one and the same.
    """
    free = asyncio.Semaphore(most)
    last: dict[str, asyncio.Task[Answered]] = {}
    asked: list[asyncio.Task[Answered]] = []

    async def ask(turn: Turn) -> Answered:
        try:
            return await client.ask(turn, arm.session_of(turn))
        finally:
            free.release()

    for turn in turns:
        name = turn.conversation.name
        if name in last:
            await last[name]
        await free.acquire()
        last[name] = asyncio.create_task(ask(turn))
        asked.append(last[name])
    return await asyncio.gather(*asked)


@dataclass(frozen=True, slots=True)
class Timed:
    """A turn that is sent `at_s` after the start, whatever became of others."""

    at_s: float
    turn: Turn


async def on_time(
    client: ChatClient, schedule: Sequence[Timed], arm: Arm
) -> tuple[list[Answered], float]:
    """An open loop; also the largest delay in s between a turn's time and its sending."""
    started_s = time.perf_counter()

    async def send(timed: Timed) -> Answered:
        await asyncio.sleep(max(0.0, started_s + timed.at_s - time.perf_counter()))
        return await client.ask(timed.turn, arm.session_of(timed.turn))

    answers = await asyncio.gather(*map(send, schedule))
    delays = (
        answer.sent_s - started_s - timed.at_s
        for answer, timed in zip(answers, schedule, strict=True)
    )
    return answers, max(delays)
