"""The tracker knows an engine's cache exactly, and so does the index, whatever happens between."""

import asyncio
from array import array
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from replicas.engines.sim import SimEngine
from replicas.kv import subscriber, tracker
from replicas.kv.events import BlockRemoved, BlockStored, EngineBatch, KVEvent, decode_engine_batch
from replicas.kv.subscriber import SubscriberSettings
from replicas.kv.tracker import CacheTracker, TrackerSettings
from replicas.settlement import Cause, Settlement
from router.configuration import SimConfig
from router.core.errors import ConfigurationError, EngineDead
from router.core.hashing import hash_blocks
from router.core.types import ReplicaId
from tests.contract.engine_client import collect_with_report, fresh_prompt, make_request
from tests.unit.replicas.kv.local_index import LocalIndex

BLOCK_SIZE = 4
R1 = ReplicaId("R1")
SETTINGS = TrackerSettings(
    repair_interval_s=0.01,
    late_event_s=0.01,
    subscriber=SubscriberSettings(check_after_s=0.05, replay_limit_s=1.0),
)
SIM = SimConfig(
    block_size=BLOCK_SIZE,
    total_blocks=64,
    max_model_len=200,
    prefill_ms_per_token=0,
    prefill_base_ms=0.1,
    decode_ms_per_token=0.1,
)


@dataclass
class Replica:
    """A simulated engine, its tracker, and the index that is told."""

    engine: SimEngine
    tracker: CacheTracker
    index: LocalIndex

    async def serve(self, *prompts: list[int], **options: Any) -> Settlement:
        """Settles against what the index knows at the start, as if the router had asked it."""
        request = make_request(*prompts, **options)
        routing = self.index.route(request, R1, BLOCK_SIZE)
        _, report = await collect_with_report(self.engine, request)
        return await self.tracker.settlement(request, routing, report)

    def engine_blocks(self) -> set[int]:
        """The simulated engine's own truth; it names blocks by the router's hashes."""
        return set(self.engine._pool.contents())

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(5):
            while not condition():  # noqa: ASYNC110
                await asyncio.sleep(0.002)

    async def until_exact(self) -> None:
        await self.until(lambda: self.index.blocks(R1) == self.engine_blocks())
        assert not self.tracker.is_partial


@pytest.fixture
async def replica() -> AsyncIterator[Replica]:
    """Told to the index and in step with it."""
    engine = SimEngine(SIM, "m")
    info = await engine.start()
    replica = Replica(engine, CacheTracker(engine, info, R1, SETTINGS), LocalIndex())
    replica.tracker.follow()
    replica.tracker.publish(replica.index)
    await replica.until(lambda: replica.index.index.applied_seq(R1) is not None)
    yield replica
    await replica.tracker.close()
    await engine.stop()


def drop_events(monkeypatch: pytest.MonkeyPatch, kind: type[KVEvent]) -> None:
    """Takes the events of one kind out of every batch on its way, without a trace."""

    def decoded(payload: bytes) -> EngineBatch:
        batch = decode_engine_batch(payload)
        kept = tuple(event for event in batch.events if not isinstance(event, kind))
        return replace(batch, events=kept)

    monkeypatch.setattr(subscriber, "decode_engine_batch", decoded)


async def test_the_index_holds_what_the_engine_holds_after_load_with_eviction(
    replica: Replica,
) -> None:
    system = fresh_prompt(3 * BLOCK_SIZE)
    for start in range(0, 40, 8):
        turns = [system + fresh_prompt(20 + number) for number in range(start, start + 8)]
        await asyncio.gather(*(replica.serve(turn, max_tokens=9) for turn in turns))
    await replica.until_exact()
    assert len(replica.engine_blocks()) > 50


async def test_one_at_a_time_every_forecast_holds(replica: Replica) -> None:
    system = fresh_prompt(2 * BLOCK_SIZE + 1)
    prompts = [system + fresh_prompt(length) for length in range(1, 24, 3)]
    for prompt in [*prompts, *prompts]:
        for cache_salt in (None, "tenant"):
            await replica.until_exact()
            settled = await replica.serve(prompt, cache_salt=cache_salt)
            assert settled.causes == (None,)
            assert settled.cached_tokens[0] == settled.forecast_blocks[0] * BLOCK_SIZE


async def test_under_load_every_difference_has_a_cause(replica: Replica) -> None:
    """A cache that is far too small, so that blocks come and go while requests wait."""
    systems = [fresh_prompt(5 * BLOCK_SIZE) for _ in range(4)]
    turns = [systems[number % 4] + fresh_prompt(1 + number % 30) for number in range(120)]
    settled: list[Settlement] = []
    for start in range(0, len(turns), 12):
        batch = turns[start : start + 12]
        settled += await asyncio.gather(*(replica.serve(turn, max_tokens=5) for turn in batch))
    causes = [cause for one in settled for cause in one.causes if cause is not None]
    assert causes
    assert Cause.UNEXPLAINED not in causes
    assert Cause.INDEX_STALE not in causes


@pytest.mark.parametrize("kind", [BlockStored, BlockRemoved])
async def test_an_event_lost_without_a_trace_shows_as_unexplained(
    replica: Replica, monkeypatch: pytest.MonkeyPatch, kind: type[KVEvent]
) -> None:
    """The mutation that the settling has to catch."""
    prompt = fresh_prompt(4 * BLOCK_SIZE + 1)
    if kind is BlockRemoved:
        await replica.serve(prompt, max_tokens=1)
        await replica.until_exact()
    drop_events(monkeypatch, kind)
    if kind is BlockRemoved:
        for _ in range(8):
            await replica.serve(fresh_prompt(40), max_tokens=1)
    else:
        await replica.serve(prompt, max_tokens=1)
    await replica.tracker.catch_up()
    await replica.until(lambda: not replica.tracker._mirror.has_changes)
    settled = await replica.serve(prompt, max_tokens=1)
    assert settled.causes == (Cause.UNEXPLAINED,)


async def test_a_list_and_its_choices_settle_one_by_one(replica: Replica) -> None:
    known, other = fresh_prompt(2 * BLOCK_SIZE + 1), fresh_prompt(2 * BLOCK_SIZE + 1)
    await replica.serve(known)
    await replica.until_exact()
    request = make_request(known, other, n=2, temperature=1)
    one = replica.index.route(request, R1, BLOCK_SIZE)
    routing = replace(one, overlap_blocks=(2, 2, 0, 0), forecast_blocks=(2, 2, 0, 2))
    _, report = await collect_with_report(replica.engine, request)
    settled = await replica.tracker.settlement(request, routing, report)
    assert settled.cached_tokens == (8, 8, 0, 8)
    assert settled.causes == (None,) * 4
    short = await replica.tracker.settlement(request, one, report)
    assert short.causes == (Cause.UNEXPLAINED,) * 4
    blind = await replica.tracker.settlement(request, replace(one, is_fallback=True), report)
    assert blind.causes == (Cause.FALLBACK,) * 4


async def test_a_reset_of_an_idle_engine_is_known_at_once(replica: Replica) -> None:
    """The engine says so with its next step, which may never come."""
    prompt = fresh_prompt(3 * BLOCK_SIZE + 1)
    await replica.serve(prompt)
    await replica.until_exact()
    assert replica.index.blocks(R1)
    assert await replica.tracker.reset_prefix_cache()
    await replica.until(lambda: not replica.index.blocks(R1))
    assert (await replica.serve(prompt)).causes == (None,)
    await replica.until_exact()
    assert replica.index.blocks(R1)


async def test_a_refused_reset_changes_nothing(replica: Replica) -> None:
    prompt = fresh_prompt(3 * BLOCK_SIZE + 1)
    task = asyncio.create_task(replica.serve(prompt, max_tokens=100))
    await replica.until(lambda: replica.engine.active_blocks > 3)
    assert not await replica.tracker.reset_prefix_cache()
    await task
    await replica.until_exact()
    assert len(replica.index.blocks(R1)) >= 3


async def test_requests_beside_a_reset_leave_the_index_exact(replica: Replica) -> None:
    for _ in range(20):
        await asyncio.gather(
            replica.serve(fresh_prompt(13)),
            replica.tracker.reset_prefix_cache(),
            replica.serve(fresh_prompt(9)),
        )
        await replica.tracker.reset_prefix_cache()
    await replica.serve(fresh_prompt(13))
    await replica.until_exact()


async def test_what_is_known_in_part_is_repaired_at_the_next_idle_moment(
    replica: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A child whose parent was never announced."""
    prompt = fresh_prompt(2 * BLOCK_SIZE + 1)
    drop_events(monkeypatch, BlockStored)
    await replica.serve(prompt, max_tokens=1)
    await replica.tracker.catch_up()
    monkeypatch.undo()
    await replica.serve(prompt + fresh_prompt(9), max_tokens=1)
    await replica.until(lambda: replica.tracker.repairs == 1)
    await replica.until_exact()
    assert not replica.engine_blocks()
    settled = [await replica.serve(prompt) for _ in range(2)]
    assert [one.cached_tokens for one in settled] == [(0,), (8,)]


async def test_nothing_is_repaired_while_requests_run(replica: Replica) -> None:
    running = asyncio.create_task(replica.serve(fresh_prompt(9), max_tokens=150))
    await replica.until(lambda: replica.engine.active_blocks > 0)
    replica.tracker._mirror.lose()
    await asyncio.sleep(0.005)
    assert (replica.tracker.repairs, replica.tracker.is_partial) == (0, True)
    await running
    await replica.until(lambda: replica.tracker.repairs == 1)


async def test_an_index_that_comes_back_empty_is_told_everything(replica: Replica) -> None:
    prompt = fresh_prompt(3 * BLOCK_SIZE)
    await replica.serve(prompt)
    await replica.until_exact()
    replica.index.is_down = True
    await replica.serve(prompt + fresh_prompt(9))
    replica.index.restart()
    replica.index.is_down = False
    await replica.until_exact()
    longer = prompt + fresh_prompt(9)
    await replica.serve(longer)
    await replica.until_exact()
    hashes = hash_blocks(array("I", longer).tobytes(), BLOCK_SIZE)
    assert set(hashes.tolist()) <= replica.index.blocks(R1)


async def test_serving_goes_on_when_telling_the_index_fails_in_a_way_nobody_foresaw(
    replica: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(events: bytes) -> None:
        raise ValueError("unforeseen")

    monkeypatch.setattr(tracker, "_RESTART_AFTER_S", 0.01)
    monkeypatch.setattr(replica.index, "apply", fail)
    await replica.serve(fresh_prompt(9))
    await replica.until(lambda: replica.tracker.publisher_failures > 0)
    replica.tracker.check()
    monkeypatch.undo()
    await replica.until_exact()


async def test_losing_track_of_the_cache_fails_the_replica(replica: Replica) -> None:
    replica.tracker.check()
    other = CacheTracker(
        replica.engine,
        replace(replica.engine._info(replica.engine._publisher), block_size=8),  # type: ignore[arg-type]
        R1,
        SETTINGS,
    )
    other.follow()
    await replica.serve(fresh_prompt(9))
    await replica.until(lambda: any(task.done() for task in other._followers))
    with pytest.raises(EngineDead, match="lost track"):
        other.check()
    await other.close()


async def test_an_engine_without_events_is_refused() -> None:
    engine = SimEngine(SIM, "m")
    info = replace(await engine.start(), kv_events_endpoint=None)
    with pytest.raises(ConfigurationError, match="no KV events"):
        CacheTracker(engine, info, R1)
    await engine.stop()


async def test_leaving_takes_the_replica_out_of_the_index(replica: Replica) -> None:
    await replica.serve(fresh_prompt(9))
    await replica.tracker.close()
    assert R1 not in replica.index.index.blocks_by_replica()
    await replica.tracker.close()


async def test_everything_is_counted_by_name(replica: Replica) -> None:
    await replica.serve(fresh_prompt(9))
    await replica.until_exact()
    counters = replica.tracker.counters()
    assert counters["blocks"] == len(replica.engine_blocks())
    assert counters["live"] + counters["replayed"] >= 1
    assert counters["index_registrations"] == 1
