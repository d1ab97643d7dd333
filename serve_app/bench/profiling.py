"""A real engine's pass times: measured through the `Engine` protocol, fitted to `FittedLatency`."""

import asyncio
import json
import time
from array import array
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass
from random import Random
from statistics import median

import numpy as np

from replicas.engines.protocol import Engine, EngineRequest, Route
from replicas.sim.latency import FittedLatency
from replicas.sim.sequence import Pass

WARM_UPS = 3
DECODED_TOKENS = 24


@dataclass(frozen=True, slots=True)
class Observation:
    """A pass, and how long it took by a caller of the engine."""

    work: Pass
    ms: float


@dataclass(frozen=True, slots=True)
class Grid:
    """What is measured: prompts of `lengths` tokens, cold and after `contexts` cached ones, and
    `batches` sequences that decode on prompts of the same lengths. Medians of `repeats`.
    """

    lengths: tuple[int, ...]
    contexts: tuple[int, ...]
    batches: tuple[int, ...]
    repeats: int = 3


class Profiler:
    """Sends requests to an idle engine that nobody else uses. Prompts are random and never equal.

    `block_size` is the engine's: contexts are cut to whole blocks.
    """

    def __init__(self, engine: Engine, block_size: int, rng: Random, vocabulary: int) -> None:
        self._engine = engine
        self._block_size = block_size
        self._rng = rng
        self._vocabulary = vocabulary
        self._sent = 0

    async def measure(self, grid: Grid) -> list[Observation]:
        """O(points · repeats) requests."""
        for length in (grid.lengths[0], grid.lengths[-1]) * WARM_UPS:
            await self._prefill(length, 0)
        found = []
        for context in (0, *grid.contexts):
            for length in grid.lengths:
                found.append(await self._repeated_prefill(length, context, grid.repeats))
        for batch in grid.batches:
            for length in grid.lengths:
                found.append(await self._decode(batch, length))
        return found

    async def _repeated_prefill(self, length: int, context: int, repeats: int) -> Observation:
        held = context // self._block_size * self._block_size
        times_ms = [await self._prefill(length, held) for _ in range(repeats)]
        work = Pass(prefill_sequences=1, prefill_tokens=length, prefill_context_tokens=held)
        return Observation(work, median(times_ms))

    async def _prefill(self, length: int, context: int) -> float:
        """Milliseconds to the one token of a prompt of which `context` tokens are cached."""
        before = self._prompt(context)
        if context:
            await self._times(before + self._prompt(1), 1)
        started_s = time.monotonic()
        (token_s,) = await self._times(before + self._prompt(length), 1)
        return 1000 * (token_s - started_s)

    async def _decode(self, batch: int, length: int) -> Observation:
        """A pass of `batch` sequences, over those passes that all of them share."""
        tokens = DECODED_TOKENS + batch
        prompts = [self._prompt(length) for _ in range(batch)]
        all_times = await asyncio.gather(*(self._times(prompt, tokens) for prompt in prompts))
        start_s = max(times[0] for times in all_times)
        end_s = min(times[-1] for times in all_times)
        shared = [t for t in all_times[-1] if start_s <= t <= end_s]
        pass_ms = 1000 * (shared[-1] - shared[0]) / (len(shared) - 1)
        context = batch * (length + tokens // 2)
        return Observation(Pass(decode_sequences=batch, decode_context_tokens=context), pass_ms)

    def _prompt(self, tokens: int) -> list[int]:
        return [self._rng.randrange(16, self._vocabulary) for _ in range(tokens)]

    async def _times(self, prompt: Sequence[int], tokens: int) -> list[float]:
        """When each token came, in seconds of the monotonic clock."""
        self._sent += 1
        body = {"max_tokens": tokens, "temperature": 0, "ignore_eos": True, "stream": True}
        request = EngineRequest(
            request_id=f"profile-{self._sent}",
            route=Route.COMPLETIONS,
            body=json.dumps(body | {"prompt": list(prompt)}).encode(),
            prompts=(array("I", prompt).tobytes(),),
            cache_salt=None,
            is_stream=True,
        )
        times: list[float] = []
        async with aclosing(self._engine.generate(request)) as parts:
            async for part in parts:
                if isinstance(part, bytes):
                    events = part.count(b'"text":')
                    times += [time.monotonic()] * events
        return times


def fit(observations: Sequence[Observation]) -> FittedLatency:
    """Least squares of the relative errors, with no coefficient below zero: the most negative one
    is taken out until none is left.
    """
    features = np.array([FittedLatency.features(one.work) for one in observations], np.float64)
    weights = 1 / np.array([one.ms for one in observations])
    weighted, ones = features * weights[:, None], np.ones(len(observations))
    kept = list(range(features.shape[1]))
    while True:
        found = np.linalg.lstsq(weighted[:, kept], ones, rcond=None)[0]
        if found.min() >= 0:
            break
        kept.pop(int(found.argmin()))
    coefficients = np.zeros(features.shape[1])
    coefficients[kept] = found
    return FittedLatency(*map(float, coefficients))


def relative_errors(model: FittedLatency, observations: Sequence[Observation]) -> list[float]:
    """Fitted over measured, less 1, of each."""
    return [1000 * model.pass_s(one.work) / one.ms - 1 for one in observations]
