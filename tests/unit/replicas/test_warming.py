"""A replica's cache before its first request, with a simulated engine, which computes what others
load."""

from collections.abc import AsyncIterator, Sequence

import numpy as np
import pytest

from replicas.engines.protocol import EngineInfo, EngineReport, EngineRequest
from replicas.engines.sim import SimEngine
from replicas.kv.store.origins import WarmPrefix
from replicas.warming import warm_up
from router.configuration import SimConfig
from router.core.transfer import StoredRun
from router.core.types import StoreId
from tests.contract.engine_client import make_request

BLOCK_SIZE, OBJECT_BLOCKS = 4, 2
STORE = StoreId("store")

Found = Sequence[tuple[StoreId, WarmPrefix]]


class Stores:
    """Has these prefixes; fails where there are none."""

    def __init__(self, *prefixes: WarmPrefix) -> None:
        self.prefixes = prefixes
        self.asked: tuple[str, int, int] | None = None

    async def hottest(self, model: str, max_prefixes: int, max_blocks: int) -> Found:
        self.asked = (model, max_prefixes, max_blocks)
        if not self.prefixes:
            raise ConnectionError("no store")
        return [(STORE, prefix) for prefix in self.prefixes]


class WatchedEngine(SimEngine):
    def __init__(self, config: SimConfig) -> None:
        super().__init__(config, "m")
        self.requests: list[EngineRequest] = []

    def generate(self, request: EngineRequest):  # type: ignore[no-untyped-def]
        self.requests.append(request)
        return super().generate(request)


@pytest.fixture
async def started() -> AsyncIterator[tuple[WatchedEngine, EngineInfo]]:
    engine = WatchedEngine(SimConfig(block_size=BLOCK_SIZE, total_blocks=64, max_model_len=100))
    info = await engine.start()
    yield engine, info
    await engine.stop()


def prefix(first_token: int, objects: int, cache_salt: str | None = None) -> WarmPrefix:
    ids = np.arange(first_token, first_token + objects * OBJECT_BLOCKS * BLOCK_SIZE, dtype="<u4")
    keys = tuple((bytes([number]), OBJECT_BLOCKS) for number in range(objects))
    return WarmPrefix(ids.tobytes(), cache_salt, keys)


async def cached(engine: SimEngine, prefix: WarmPrefix, cache_salt: str | None) -> int:
    ids = [*np.frombuffer(prefix.token_ids, "<u4").tolist(), 7, 8, 9]
    items = [item async for item in engine.generate(make_request(ids, cache_salt=cache_salt))]
    assert isinstance(items[-1], EngineReport)
    return items[-1].cached_tokens[0]


async def test_the_prefixes_are_there_for_their_tenant(
    started: tuple[WatchedEngine, EngineInfo],
) -> None:
    engine, info = started
    open_one, salted = prefix(100, 2), prefix(200, 3, "salt")
    stores = Stores(open_one, salted)
    assert await warm_up(engine, info, stores) == 2
    assert stores.asked == ("m", 32, 16)
    assert await cached(engine, open_one, None) == 2 * OBJECT_BLOCKS * BLOCK_SIZE
    assert await cached(engine, salted, "salt") == 3 * OBJECT_BLOCKS * BLOCK_SIZE
    assert await cached(engine, salted, None) == 0


async def test_each_names_the_objects_to_load(started: tuple[WatchedEngine, EngineInfo]) -> None:
    engine, info = started
    await warm_up(engine, info, Stores(prefix(100, 2)))
    (request,) = engine.requests
    assert request.transfer is not None
    assert request.transfer.loads == (
        StoredRun(0, OBJECT_BLOCKS, STORE, bytes([0])),
        StoredRun(OBJECT_BLOCKS, OBJECT_BLOCKS, STORE, bytes([1])),
    )


async def test_what_this_engine_cannot_load_is_left_out(
    started: tuple[WatchedEngine, EngineInfo],
) -> None:
    """Of another block size, or longer than a prompt may be."""
    engine, info = started
    other = WarmPrefix(prefix(1, 2).token_ids, None, ((b"k", 3),))
    assert await warm_up(engine, info, Stores(other, prefix(100, 13), prefix(300, 1))) == 1
    assert len(engine.requests) == 1


async def test_without_stores_it_begins_cold(started: tuple[WatchedEngine, EngineInfo]) -> None:
    engine, info = started
    assert await warm_up(engine, info, Stores()) == 0
