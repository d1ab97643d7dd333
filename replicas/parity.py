"""Proof at start that engine and router mean the same by a block; a mismatch ends the replica.

Nothing would fail without it: every lookup would silently find nothing.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import numpy as np

from replicas.engines.protocol import EngineInfo, EngineReport, EngineRequest, Route
from replicas.kv.tracker import CacheTracker
from router.core.errors import BlockSizeMismatch, EngineError
from router.core.hashing import NO_EXTRA_KEYS, hash_blocks, salt

PROOF_LIMIT_S = 10.0
_BLOCKS = 2
_FIRST_TOKEN = 10
_KINDS = (
    ("text", Route.COMPLETIONS, None),
    ("chat", Route.CHAT, None),
    ("salt", Route.CHAT, "probe"),
)
_CONTENT: dict[Route, dict[str, Any]] = {
    Route.COMPLETIONS: {"prompt": ""},
    Route.CHAT: {"messages": [{"role": "user", "content": ""}]},
}
_PAUSE_S = 0.02

Generate = Callable[[EngineRequest], AsyncGenerator[bytes | EngineReport, None]]


@dataclass(frozen=True, slots=True)
class Probe:
    """A prompt and the blocks that the router sees in it."""

    request: EngineRequest
    hashes: Sequence[int]


async def prove_parity(generate: Generate, info: EngineInfo, tracker: CacheTracker) -> None:
    """Text, chat and salted prompts; leaves an empty cache.

    Raises `BlockSizeMismatch` where the engine's events give other hashes than the prompts.
    """
    for probe in probes(info):
        async with aclosing(generate(probe.request)) as answer:
            async for _ in answer:
                pass
        await _see(probe, tracker)
    await _empty(tracker)


def probes(info: EngineInfo) -> Iterator[Probe]:
    """None for a model whose longest prompt fills no block: there is nothing to reuse."""
    blocks = min(_BLOCKS, (info.max_model_len - 2) // info.block_size, info.total_blocks - 1)
    if blocks < 1:
        return
    for index, (name, route, cache_salt) in enumerate(_KINDS):
        ids = np.full(blocks * info.block_size + 1, _FIRST_TOKEN + index, "<u4").tobytes()
        body = {"model": info.model, "max_tokens": 1, "temperature": 0}
        request = EngineRequest(
            request_id=f"probe-{name}",
            route=route,
            body=json.dumps(body | _CONTENT[route]).encode(),
            prompts=(ids,),
            cache_salt=cache_salt,
            is_stream=False,
        )
        keys = NO_EXTRA_KEYS if cache_salt is None else salt(cache_salt)
        yield Probe(request, hash_blocks(ids, info.block_size, keys).tolist())


async def _see(probe: Probe, tracker: CacheTracker) -> None:
    """Waits for the probe's events."""
    try:
        async with asyncio.timeout(PROOF_LIMIT_S):
            while not tracker.holds(probe.hashes):
                tracker.check()
                await tracker.catch_up()
                await asyncio.sleep(_PAUSE_S)
    except TimeoutError:
        raise BlockSizeMismatch(
            f"the engine's KV events do not give the router's hashes of {probe.request.request_id}:"
            " no prefix would ever be found"
        ) from None


async def _empty(tracker: CacheTracker) -> None:
    """An engine may hold a request's blocks a moment longer than the request lasts."""
    try:
        async with asyncio.timeout(PROOF_LIMIT_S):
            while not await tracker.reset_prefix_cache():  # noqa: ASYNC110
                await asyncio.sleep(_PAUSE_S)
    except TimeoutError:
        raise EngineError("the engine does not drop the blocks of its first requests") from None
