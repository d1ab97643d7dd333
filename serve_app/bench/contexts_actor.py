"""Turns through the context manager's actor, from several processes at once."""

import asyncio
import time

import numpy as np
import ray
from ray.actor import ActorHandle

from router.contexts.messages import Kind, NewContext
from router.serve.context_client import ContextClient
from router.serve.context_connection import NamedContexts
from router.serve.context_generations import remove_contexts
from serve_app.bench.contexts_local import TENANT, Turns, settings, token_ids


class Talker:
    """One ingress process with several conversations."""

    async def start(self, journal: str, turns: Turns, talks: int) -> None:
        self._turns = turns
        self._client = ContextClient(NamedContexts(settings(journal, "bench-actor")))
        news = [
            NewContext("model", Kind.PROMPT, token_ids(turns.history_tokens, talk), b"", 3600)
            for talk in range(talks)
        ]
        self._ids = [(await self._client.create(TENANT, new)).id for new in news]

    async def run(self, seconds: float) -> tuple[float, bytes]:
        """Turns a second, and the seconds of each turn's two calls as packed f64."""
        self._took: list[float] = []
        end = time.perf_counter() + seconds
        began_at = time.perf_counter()
        await asyncio.gather(*(self._converse(number, end) for number in range(len(self._ids))))
        rate = len(self._took) / (time.perf_counter() - began_at)
        return rate, np.array(self._took).tobytes()

    async def _converse(self, number: int, end: float) -> None:
        result = self._turns.result(number)
        while (began_at := time.perf_counter()) < end:
            turn = await self._client.begin_turn(TENANT, self._ids[number], "model", Kind.PROMPT)
            await self._client.commit(turn.ticket, result)
            self._took.append(time.perf_counter() - began_at)


def talkers(journal: str, turns: Turns, processes: int, talks: int) -> list[ActorHandle]:
    actors = [ray.remote(Talker).options(num_cpus=0).remote() for _ in range(processes)]
    ray.get([actor.start.remote(journal, turns, talks) for actor in actors])
    return actors


def turns_per_s(actors: list[ActorHandle], seconds: float) -> tuple[float, float, float]:
    """Of all together, and the 50th and 99th percentile of a turn's seconds."""
    runs = ray.get([actor.run.remote(seconds) for actor in actors])
    took = np.concatenate([np.frombuffer(packed) for _, packed in runs])
    return (
        sum(rate for rate, _ in runs),
        float(np.percentile(took, 50)),
        float(np.percentile(took, 99)),
    )


def stop() -> None:
    remove_contexts("bench-actor")
