"""From a real engine's events to the index: exact against what the engine itself says it holds."""

import asyncio
import os
import random
from array import array
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from replicas import server
from replicas.engines.protocol import Engine, EngineRequest, Route
from replicas.engines.vllm.event_sockets import EventSockets
from replicas.placement import Placement
from replicas.server import LLMServer
from replicas.settlement import Cause, Settlement
from router.configuration import ModelConfig
from router.core.hashing import hash_blocks
from router.core.types import ReplicaId, Tier
from tests.contract.engine_client import fresh_prompt, make_request
from tests.unit.replicas.kv.local_index import LocalIndex
from tests.vllm.conftest import tiny_model
from tests.vllm.faulty_relay import (
    EverySecondLost,
    Fault,
    Frames,
    RelayedEngine,
    Swapped,
    doubled,
    faithful,
    lost,
)
from tests.vllm.truthful_scheduler import TRUTH_ENDPOINT, copies

pytestmark = [pytest.mark.vllm, pytest.mark.asyncio(loop_scope="module")]

R1 = ReplicaId("R1")
BLOCK_SIZE = 32
KEPT_BATCHES = 24
MODEL = tiny_model(
    engine_args={
        "block_size": BLOCK_SIZE,
        "num_gpu_blocks_override": 160,
        "max_model_len": 2048,
        "scheduler_cls": "tests.vllm.truthful_scheduler.TruthfulScheduler",
    }
)


@dataclass
class Replica:
    """A whole replica with a real engine, its events on the way through a relay, and an index."""

    server: LLMServer
    engine: RelayedEngine
    index: LocalIndex
    truth: str

    async def serve(self, *prompts: list[int], **options: Any) -> Settlement:
        return await self.answer(make_request(*prompts, **options))

    async def answer(self, request: EngineRequest) -> Settlement:
        routing = self.index.route(request, R1, BLOCK_SIZE)
        routed = replace(request, routing=routing)
        *_, settled = [item async for item in self.server.generate(routed)]
        assert isinstance(settled, Settlement)
        return settled

    async def load(self, requests: int, *, at_once: int, seed: int = 1) -> list[Settlement]:
        """Conversations over five system prompts, more than the cache can hold."""
        draw = random.Random(seed)
        systems = [fresh_prompt(3 * BLOCK_SIZE + number) for number in range(5)]
        slots = asyncio.Semaphore(at_once)

        async def one() -> Settlement:
            prompt = draw.choice(systems) + fresh_prompt(draw.randrange(1, 150))
            salt = draw.choice([None, None, "tenant"])
            async with slots:
                return await self.serve(prompt, cache_salt=salt, max_tokens=draw.randrange(1, 40))

        return list(await asyncio.gather(*(one() for _ in range(requests))))

    async def books(self) -> tuple[dict[bytes, int], dict[bytes, int], bool]:
        """Copies by engine hash as the engine and as the mirror count them; index = mirror?"""
        assert self.server._tracker is not None
        mirror = self.server._tracker._mirror
        names, counts = mirror._names._held, mirror._holdings._copies[Tier.GPU]
        mine = {bytes(name): counts[block_hash] for name, block_hash in names.items()}
        return await copies(self.truth), mine, self.index.blocks(R1) == set(names.values())

    async def until_exact(self) -> int:
        """The number of blocks that engine, mirror and index agree upon, copy by copy."""
        tracker = self.server._tracker
        assert tracker is not None
        async with asyncio.timeout(60):
            while True:
                tracker.check()
                engine, mirror, is_told = await self.books()
                if engine == mirror and is_told and not tracker.is_partial:
                    return len(engine)
                await asyncio.sleep(0.1)

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not condition():  # noqa: ASYNC110
                await asyncio.sleep(0.05)

    async def counters(self) -> dict[str, int]:
        return await self.server.cache_counters()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def started(
    engine_log: Path, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Replica]:
    folder = tmp_path_factory.mktemp("sockets")
    truth = os.environ[TRUTH_ENDPOINT] = f"ipc://{folder}/truth"
    index = LocalIndex()
    engines: list[RelayedEngine] = []
    configure, open_engine = EventSockets.config, server.open_engine

    def relayed(model: ModelConfig, _: object) -> Engine:
        engines.append(RelayedEngine(open_engine(model), folder))
        return engines[0]

    def forgetful(sockets: EventSockets) -> Any:
        config = configure(sockets)
        config.buffer_steps = KEPT_BATCHES
        return config

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(server, "placement", lambda *_: Placement(R1, index))
        patch.setattr(server, "open_engine", relayed)
        patch.setattr(EventSockets, "config", forgetful)
        replica = LLMServer(MODEL.model_dump())
        await replica.check_health()
        yield Replica(replica, engines[0], index, truth)
        await replica.shutdown()


@pytest_asyncio.fixture(loop_scope="module")
async def replica(started: Replica) -> AsyncIterator[Replica]:
    """Empty, in step, and without faults."""
    started.engine.fault, started.engine.delay_s = faithful, 0.0
    await started.until_exact()
    assert await started.server.reset_prefix_cache()
    await started.until_exact()
    yield started
    started.engine.fault, started.engine.delay_s = faithful, 0.0


def causes(settled: list[Settlement]) -> list[Cause]:
    return [cause for one in settled for cause in one.causes if cause is not None]


async def test_the_cache_of_a_fresh_replica_is_empty_and_known(replica: Replica) -> None:
    assert await replica.until_exact() == 0
    assert (await replica.counters())["replayed"] >= 0


async def test_one_at_a_time_every_forecast_holds_to_the_token(replica: Replica) -> None:
    system = fresh_prompt(2 * BLOCK_SIZE + 5)
    prompts = [system + fresh_prompt(length) for length in (1, 27, 28, 59, 60, 100)]
    for prompt in [*prompts, *prompts]:
        for cache_salt in (None, "tenant"):
            await replica.until_exact()
            settled = await replica.serve(prompt, cache_salt=cache_salt, max_tokens=8)
            assert settled.causes == (None,)
            assert settled.cached_tokens[0] == settled.forecast_blocks[0] * BLOCK_SIZE


async def test_under_load_with_eviction_all_agree_and_every_difference_has_a_cause(
    replica: Replica,
) -> None:
    settled = await replica.load(60, at_once=16)
    assert causes(settled)
    assert not {Cause.UNEXPLAINED, Cause.INDEX_STALE} & set(causes(settled))
    assert await replica.until_exact() > 100


@pytest.mark.parametrize(
    ("fault", "delay_s"),
    [(doubled, 0.0), (EverySecondLost(), 0.0), (Swapped(), 0.0), (faithful, 1.0)],
    ids=["doubled", "every second lost", "reordered", "a second late"],
)
async def test_whatever_befalls_the_events_all_agree_in_the_end(
    replica: Replica, fault: Fault, delay_s: float
) -> None:
    """What does not come is fetched from the engine's replay, the last batch too."""
    before = await replica.counters()
    replica.engine.fault, replica.engine.delay_s = fault, delay_s
    settled = await replica.load(24, at_once=8)
    assert Cause.UNEXPLAINED not in causes(settled)
    assert await replica.until_exact() > 30
    after = await replica.counters()
    assert (after["lost"], after["repairs"]) == (before["lost"], before["repairs"])


async def test_a_gap_that_no_replay_can_fill_is_repaired_at_the_next_idle_moment(
    replica: Replica,
) -> None:
    assert replica.server._tracker is not None
    before = await replica.counters()
    replica.engine.fault = lost
    async with replica.server._tracker._subscriber._turn:  # silence would be noticed
        for _ in range(KEPT_BATCHES + 8):
            request = make_request(fresh_prompt(BLOCK_SIZE + 1), max_tokens=1)
            _ = [item async for item in replica.server.generate(request)]
    replica.engine.fault = faithful
    await replica.serve(fresh_prompt(BLOCK_SIZE + 1), max_tokens=1)
    await replica.until(lambda: replica.server._tracker.repairs > before["repairs"])  # type: ignore[union-attr]
    assert await replica.until_exact() == 0
    assert (await replica.counters())["lost"] == before["lost"] + 1
    await replica.load(8, at_once=4)
    assert await replica.until_exact() > 10


async def test_a_reset_of_an_idle_engine_is_in_the_index_without_another_step(
    replica: Replica,
) -> None:
    prompt = fresh_prompt(4 * BLOCK_SIZE + 1)
    await replica.serve(prompt)
    assert await replica.until_exact() >= 4
    steps = (await replica.counters())["live"]
    assert await replica.server.reset_prefix_cache()
    assert await replica.until_exact() == 0
    assert (await replica.counters())["live"] == steps
    assert (await replica.serve(prompt)).causes == (None,)
    assert await replica.until_exact() >= 4


async def test_one_event_dropped_on_purpose_is_caught(replica: Replica) -> None:
    """Inside a batch that arrives: nothing but the settling can notice."""

    def without_stored(frames: Frames) -> list[Frames]:
        ts, events, rank = msgspec.msgpack.decode(frames[2])
        kept = [event for event in events if event["type"] != "BlockStored"]
        return [[*frames[:2], msgspec.msgpack.encode([ts, kept, rank])]]

    prompt = fresh_prompt(2 * BLOCK_SIZE + 1)
    live = (await replica.counters())["live"]
    replica.engine.fault = without_stored
    await replica.serve(prompt, max_tokens=1)
    await replica.until(lambda: _live(replica) > live)
    replica.engine.fault = faithful
    settled = await replica.serve(prompt, max_tokens=1)
    assert (settled.cached_tokens, settled.causes) == ((2 * BLOCK_SIZE,), (Cause.UNEXPLAINED,))
    assert await replica.server.reset_prefix_cache()


def _live(replica: Replica) -> int:
    assert replica.server._tracker is not None
    return replica.server._tracker._subscriber.counters.live


LONG = "You answer in short sentences and never speak of the weather, whatever anybody asks. " * 2
CHATS: dict[str, list[dict[str, Any]]] = {
    "no system": [{"role": "user", "content": LONG}],
    "system": [{"role": "system", "content": LONG}, {"role": "user", "content": "Why?"}],
    "empty system": [{"role": "system", "content": ""}, {"role": "user", "content": LONG}],
    "many turns": [
        {"role": "system", "content": LONG},
        {"role": "user", "content": "One?"},
        {"role": "assistant", "content": "Two. " * 9},
        {"role": "user", "content": "Three?"},
    ],
    "trailing spaces": [{"role": "user", "content": LONG + "   \n\n  "}],
    "emoji": [{"role": "user", "content": LONG + "🦀🇪🇺👩‍👩‍👧‍👦" * 6}],
    "special tokens": [{"role": "user", "content": LONG + "<|im_end|><|im_start|>system</s>"}],
}


@pytest.fixture(scope="module")
def renderer(started: Replica) -> Any:
    from serve_app.rendering import Renderer

    return asyncio.run(Renderer.load(MODEL.model_copy(update={"engine_args": {}}), 1))


@pytest.mark.parametrize("messages", CHATS.values(), ids=CHATS)
async def test_a_chat_rendered_by_the_engine_has_the_blocks_that_the_ingress_hashed(
    replica: Replica, renderer: Any, messages: list[dict[str, Any]]
) -> None:
    from serve_app.allow_list import ApiRoute

    body = {"model": MODEL.name, "messages": messages}
    (prompt,) = await renderer.render(ApiRoute.CHAT, body, renderer.validated(ApiRoute.CHAT, body))
    ids = list(array("I", prompt))
    rendered = make_request(ids, route=Route.CHAT, needs_render=True, **body)
    await replica.answer(rendered)
    await replica.until_exact()
    hashes = hash_blocks(prompt, BLOCK_SIZE).tolist()
    assert hashes
    assert set(hashes) <= replica.index.blocks(R1)
    again = await replica.serve(ids, route=Route.CHAT, **body)
    assert (again.causes, again.forecast_blocks) == ((None,), ((len(ids) - 1) // BLOCK_SIZE,))
