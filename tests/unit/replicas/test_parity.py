"""A replica whose engine and router mean different blocks never gets ready."""

import asyncio
from array import array
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from replicas import parity
from replicas.engines.protocol import EngineInfo, EngineRequest, Route
from replicas.engines.sim import SimEngine
from replicas.kv import mirror
from replicas.kv.tracker import CacheTracker
from replicas.parity import probes, prove_parity
from router.configuration import SimConfig
from router.core.errors import BlockSizeMismatch, EngineDead, EngineError
from router.core.hashing import ExtraKeys
from router.core.types import ReplicaId

SIM = SimConfig(block_size=4, total_blocks=64, max_model_len=200, prefill_base_ms=0.1)


@pytest.fixture
async def engine() -> AsyncIterator[SimEngine]:
    engine = SimEngine(SIM, "m")
    await engine.start()
    yield engine
    await engine.stop()


@pytest.fixture
def info(engine: SimEngine) -> EngineInfo:
    assert engine._publisher is not None
    return engine._info(engine._publisher)


async def prove(engine: SimEngine, info: EngineInfo) -> CacheTracker:
    tracker = CacheTracker(engine, info, ReplicaId("R1"))
    tracker.follow()
    try:
        await prove_parity(engine.generate, info, tracker)
    finally:
        await tracker.close()
    return tracker


async def test_text_chat_and_salt_are_proved_and_leave_nothing_behind(
    engine: SimEngine, info: EngineInfo, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[Route, str | None]] = []
    generate = engine.generate

    def recorded(request: EngineRequest) -> Any:
        seen.append((request.route, request.cache_salt))
        return generate(request)

    monkeypatch.setattr(engine, "generate", recorded)
    tracker = await prove(engine, info)
    assert seen == [(Route.COMPLETIONS, None), (Route.CHAT, None), (Route.CHAT, "probe")]
    assert not engine._pool.contents()
    assert tracker.counters()["blocks"] == 0


async def test_a_router_that_hashes_salts_in_its_own_way_is_found_out(
    engine: SimEngine, info: EngineInfo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parity, "PROOF_LIMIT_S", 0.4)
    monkeypatch.setattr(parity, "salt", lambda value: ExtraKeys((value.encode(),)))
    with pytest.raises(BlockSizeMismatch, match="probe-salt"):
        await prove(engine, info)


async def test_an_engine_with_other_blocks_than_it_says_is_found_out(
    engine: SimEngine, info: EngineInfo
) -> None:
    with pytest.raises((BlockSizeMismatch, EngineDead), match="blocks have 4 tokens, 8 expected"):
        await prove(engine, replace(info, block_size=8))


async def test_an_engine_that_tells_nothing_is_found_out(
    engine: SimEngine, info: EngineInfo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parity, "PROOF_LIMIT_S", 0.4)
    monkeypatch.setattr(mirror.Mirror, "apply", lambda *_: None)
    with pytest.raises(BlockSizeMismatch, match="probe-text"):
        await prove(engine, info)


async def test_an_engine_that_keeps_the_probes_is_found_out(
    engine: SimEngine, info: EngineInfo, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse() -> bool:
        await asyncio.sleep(0)
        return False

    monkeypatch.setattr(parity, "PROOF_LIMIT_S", 0.4)
    monkeypatch.setattr(engine, "reset_prefix_cache", refuse)
    with pytest.raises(EngineError, match="does not drop"):
        await prove(engine, info)


@pytest.mark.parametrize(
    ("max_model_len", "total_blocks", "blocks"), [(200, 64, 2), (8, 64, 1), (5, 64, 0), (200, 2, 1)]
)
def test_probes_fit_into_the_engine(
    info: EngineInfo, max_model_len: int, total_blocks: int, blocks: int
) -> None:
    small = replace(info, max_model_len=max_model_len, total_blocks=total_blocks)
    lengths = {len(array("I", probe.request.prompts[0])) for probe in probes(small)}
    assert lengths == ({blocks * 4 + 1} if blocks else set())
    assert all(len(probe.hashes) == blocks for probe in probes(small))
