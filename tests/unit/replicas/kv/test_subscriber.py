"""The subscriber gives the feed every batch once and in order, whatever the sockets bring."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from replicas.kv.events import AllBlocksCleared
from replicas.kv.feed import EngineFeed
from replicas.kv.mirror import Mirror
from replicas.kv.subscriber import EventSubscriber, SubscriberSettings
from router.core.errors import BlockSizeMismatch, ConfigurationError
from router.core.types import Incarnation, ReplicaId
from tests.unit.replicas.kv.engine_events import BLOCK_SIZE, stored
from tests.unit.replicas.kv.fake_engine import FakeEngine, wire

SETTINGS = SubscriberSettings(check_after_s=0.03, replay_limit_s=0.2)
PROMPT = "abcdefghij"
BATCHES = [wire(place, stored(letter, after=PROMPT[:place])) for place, letter in enumerate(PROMPT)]


@dataclass
class Listening:
    """A subscriber at work on a fake engine."""

    engine: FakeEngine
    mirror: Mirror
    feed: EngineFeed
    subscriber: EventSubscriber
    reading: "asyncio.Task[None]"
    applied: list[int] = field(default_factory=list)

    async def publish(self, *seqs: int) -> None:
        for seq in seqs:
            await self.engine.publish(seq, BATCHES[seq])

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(5):
            while not condition():  # noqa: ASYNC110
                await asyncio.sleep(0.002)


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[FakeEngine]:
    async with FakeEngine.running(tmp_path) as engine:
        yield engine


@pytest.fixture
async def listening(engine: FakeEngine) -> AsyncIterator[Listening]:
    mirror = Mirror(ReplicaId("R1"), Incarnation(1), BLOCK_SIZE)
    feed = EngineFeed(mirror)
    applied: list[int] = []
    subscriber = EventSubscriber(
        engine.events_endpoint,
        engine.replay_endpoint,
        feed,
        lambda: applied.append(len(mirror)),
        SETTINGS,
    )
    tasks = [asyncio.create_task(engine.serve_replays()), asyncio.create_task(subscriber.run())]
    await engine.subscribed()
    yield Listening(engine, mirror, feed, subscriber, tasks[1], applied)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    subscriber.close()


async def test_batches_reach_the_mirror_and_each_is_announced(listening: Listening) -> None:
    await listening.publish(0, 1, 2)
    await listening.until(lambda: len(listening.mirror) == 3)
    assert {1, 2, 3} <= set(listening.applied)


async def test_a_missing_batch_is_replayed_before_the_later_one_and_only_once(
    listening: Listening,
) -> None:
    await listening.publish(0)
    listening.engine.kept[1] = BATCHES[1]
    await listening.publish(2, 3)
    await listening.until(lambda: listening.feed.next_seq == 4)
    counters = listening.feed.counters
    assert (len(listening.mirror), counters.gaps, counters.lost) == (4, 1, 0)
    assert listening.mirror.counters.unknown_parent == 0
    assert not listening.mirror.is_partial


async def test_a_replay_that_no_longer_reaches_back_leaves_the_mirror_partial(
    listening: Listening,
) -> None:
    await listening.publish(0)
    await listening.engine.publish(3, wire(3, stored("xy")))
    await listening.until(lambda: listening.feed.next_seq == 4)
    assert (len(listening.mirror), listening.mirror.is_partial) == (2, True)
    assert listening.feed.counters.lost == 1
    await listening.engine.publish(4, wire(4, AllBlocksCleared(), stored("z")))
    await listening.until(lambda: listening.feed.next_seq == 5)
    assert (len(listening.mirror), listening.mirror.is_partial) == (1, False)


async def test_a_replay_socket_that_is_silent_is_not_waited_for_for_ever(
    engine: FakeEngine,
) -> None:
    mirror = Mirror(ReplicaId("R1"), Incarnation(1), BLOCK_SIZE)
    feed = EngineFeed(mirror)
    subscriber = EventSubscriber(
        engine.events_endpoint, engine.replay_endpoint, feed, lambda: None, SETTINGS
    )
    reading = asyncio.create_task(subscriber.run())
    await engine.subscribed()
    await engine.publish(1, BATCHES[0])
    async with asyncio.timeout(5):
        while feed.next_seq < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.002)
    assert (mirror.is_partial, subscriber.counters.failed_replays > 0) == (True, True)
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    subscriber.close()


async def test_doubled_and_reordered_batches_change_nothing(listening: Listening) -> None:
    for seq in (0, 1, 2, 3):
        listening.engine.kept[seq] = BATCHES[seq]
    await listening.publish(0, 0, 2, 1, 3, 2, 3, 0)
    await listening.until(lambda: listening.subscriber.counters.live == 8)
    assert (len(listening.mirror), listening.mirror.is_partial) == (4, False)
    assert listening.feed.counters.restarts == 0
    assert listening.subscriber.counters.duplicates >= 6


async def test_numbers_that_begin_anew_are_another_engine(listening: Listening) -> None:
    await listening.publish(0, 1, 2)
    await listening.until(lambda: len(listening.mirror) == 3)
    listening.engine.kept.clear()
    await listening.engine.publish(0, wire(0, stored("xy"), at_s=100.0))
    await listening.until(lambda: listening.feed.counters.restarts == 1)
    assert (len(listening.mirror), listening.mirror.is_partial) == (2, False)


async def test_the_last_batch_lost_in_silence_is_found_after_work(listening: Listening) -> None:
    await listening.publish(0)
    await listening.until(lambda: len(listening.mirror) == 1)
    listening.engine.kept[1] = BATCHES[1]
    listening.subscriber.doubt()
    await listening.until(lambda: len(listening.mirror) == 2)


async def test_an_engine_without_work_is_not_asked_again_and_again(listening: Listening) -> None:
    await listening.until(lambda: len(listening.engine.asked) == 1)
    for _ in range(4):
        await asyncio.sleep(SETTINGS.check_after_s)
    assert listening.engine.asked == [0]


@pytest.mark.parametrize(
    "frames",
    [
        [b"", (0).to_bytes(8, "big"), b"\xc1 no msgpack"],
        [b"", (0).to_bytes(8, "big"), b""],
        [b"", b"\x01", BATCHES[0]],
        [b"alone"],
        [b"", (0).to_bytes(8, "big"), BATCHES[0], b"too many"],
    ],
    ids=["no batch", "empty", "short number", "one frame", "four frames"],
)
async def test_garbage_is_counted_and_survived(listening: Listening, frames: list[bytes]) -> None:
    await listening.engine.send(frames)
    await listening.publish(0, 1)
    await listening.until(lambda: len(listening.mirror) == 2)
    assert listening.subscriber.counters.garbage == 1
    assert not listening.mirror.is_partial


async def test_a_batch_that_cannot_be_read_is_a_gap_like_any_other(listening: Listening) -> None:
    await listening.publish(0)
    await listening.engine.publish(1, b"\xc1")
    await listening.publish(2)
    await listening.until(lambda: listening.mirror.is_partial)
    assert listening.feed.counters.lost == 1


async def test_while_paused_nothing_is_applied_and_nothing_is_lost(listening: Listening) -> None:
    await listening.publish(0)
    await listening.until(lambda: len(listening.mirror) == 1)
    async with listening.subscriber.paused():
        await listening.publish(1, 2)
        await asyncio.sleep(0.03)
        assert len(listening.mirror) == 1
    await listening.until(lambda: len(listening.mirror) == 3)


async def test_pausing_first_applies_what_was_published_before(listening: Listening) -> None:
    listening.engine.kept[0] = BATCHES[0]
    async with listening.subscriber.paused():
        assert len(listening.mirror) == 1


async def test_another_block_size_ends_the_reading(listening: Listening) -> None:
    event = stored("a")
    wrong = type(event)(event.block_hashes, None, (1, 2, 3), 3)
    await listening.engine.publish(0, wire(0, wrong))
    with pytest.raises(BlockSizeMismatch):
        await asyncio.wait_for(listening.reading, 5)


@pytest.mark.parametrize("endpoint", ["tcp://*:5557", "tcp://0.0.0.0:5557", "tcp://10.0.0.1:5557"])
async def test_sockets_that_others_could_reach_are_refused(endpoint: str) -> None:
    feed = EngineFeed(Mirror(ReplicaId("R1"), Incarnation(1), BLOCK_SIZE))
    with pytest.raises(ConfigurationError, match="kv_events_endpoint"):
        EventSubscriber(endpoint, None, feed, lambda: None)
    with pytest.raises(ConfigurationError, match="kv_events_endpoint"):
        EventSubscriber("ipc:///tmp/none", endpoint, feed, lambda: None)
