"""A replica's cache before its first request: the prefixes that its application's stores used most.

Each is asked for as an ordinary request of one token, so that whatever follows the engine's cache
sees it as such. A replica that cannot be warmed begins cold.
"""

import asyncio
import json
import logging
from collections.abc import Iterator, Sequence
from contextlib import aclosing
from typing import Protocol

from replicas.engines.protocol import Engine, EngineInfo, EngineRequest, Route
from replicas.kv.store.origins import WarmPrefix
from router.core.transfer import StoredRun, TransferRequest
from router.core.types import StoreId

logger = logging.getLogger(__name__)

WARM_LIMIT_S = 20.0
MAX_PREFIXES = 32
CACHE_SHARE = 0.25
"""Of the engine's blocks, at most: the rest is for those who come."""
TOKEN_BYTES = 4


class HotPrefixes(Protocol):
    async def hottest(
        self, model: str, max_prefixes: int, max_blocks: int
    ) -> Sequence[tuple[StoreId, WarmPrefix]]:
        """What stores have used most, each with a store that has it. May raise anything."""
        ...


async def warm_up(engine: Engine, info: EngineInfo, stores: HotPrefixes) -> int:
    """Loads them one after the other, for a while at most; returns how many."""
    done = 0
    try:
        async with asyncio.timeout(WARM_LIMIT_S):
            max_blocks = int(info.total_blocks * CACHE_SHARE)
            found = await stores.hottest(info.model, MAX_PREFIXES, max_blocks)
            for request in _requests(info, found):
                async with aclosing(engine.generate(request)) as answer:
                    async for _ in answer:
                        pass
                done += 1
    except Exception as error:
        logger.warning("the warming of the cache has ended early: %r", error)
    if done:
        logger.info("the cache begins with %d prefixes", done)
    return done


def _requests(
    info: EngineInfo, found: Sequence[tuple[StoreId, WarmPrefix]]
) -> Iterator[EngineRequest]:
    """An engine computes at least one token: one more than the prefix, so that all of it loads."""
    for number, (store_id, prefix) in enumerate(found):
        tokens = len(prefix.token_ids) // TOKEN_BYTES
        if tokens != prefix.blocks * info.block_size or tokens + 2 > info.max_model_len:
            continue
        body = {"model": info.model, "max_tokens": 1, "temperature": 0}
        yield EngineRequest(
            request_id=f"warm-{number}",
            route=Route.COMPLETIONS,
            body=json.dumps(body).encode(),
            prompts=(prefix.token_ids + prefix.token_ids[:TOKEN_BYTES],),
            cache_salt=prefix.cache_salt,
            is_stream=False,
            transfer=TransferRequest(tuple(_runs(store_id, prefix))),
        )


def _runs(store_id: StoreId, prefix: WarmPrefix) -> Iterator[StoredRun]:
    first = 0
    for key, blocks in prefix.objects:
        yield StoredRun(first, blocks, store_id, key)
        first += blocks
