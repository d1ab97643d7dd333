"""Reads an engine's KV events from its sockets, and asks for what it missed.

Frames of an event: `[topic, seq, batch]`, `seq` 8 bytes big-endian. A replay is asked for by
`[b"", first seq]` and answered by `[b"", topic, seq, batch]` each, ended by the seq -1.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from zmq.asyncio import Context, Socket
from zmq.constants import DEALER, LINGER, RCVHWM, SUB, SUBSCRIBE

from replicas.kv.events import EngineBatch, decode_engine_batch
from replicas.kv.feed import Arrival, EngineFeed
from router.core.errors import ConfigurationError, MalformedMessage

logger = logging.getLogger(__name__)

_END_OF_REPLAY = b"\xff" * 8
_PRIVATE = ("ipc://", "inproc://", "tcp://127.0.0.1:", "tcp://[::1]:")
_MAX_UNREAD_BATCHES = 100_000


@dataclass(frozen=True, slots=True)
class SubscriberSettings:
    """Silence of `check_after_s` with work in the engine is checked for lost events by a replay."""

    check_after_s: float = 1.0
    replay_limit_s: float = 5.0


@dataclass(slots=True)
class SubscriberCounters:
    """Batches by their way here; `garbage` could not be read at all, `skipped` are events."""

    live: int = 0
    replayed: int = 0
    duplicates: int = 0
    garbage: int = 0
    skipped: int = 0
    replays: int = 0
    failed_replays: int = 0


class EventSubscriber:
    """One engine's events into one feed; `on_applied` is called whenever the mirror may differ.

    Owned by one event loop. Raises `ConfigurationError` for an endpoint that other machines could
    reach: events carry prompts and salts.
    """

    def __init__(
        self,
        events_endpoint: str,
        replay_endpoint: str | None,
        feed: EngineFeed,
        on_applied: Callable[[], None],
        settings: SubscriberSettings | None = None,
    ) -> None:
        for endpoint in filter(None, (events_endpoint, replay_endpoint)):
            if not endpoint.startswith(_PRIVATE):
                raise ConfigurationError("kv_events_endpoint", "is reachable from other machines")
        self.counters = SubscriberCounters()
        self._replay_endpoint = replay_endpoint
        self._feed = feed
        self._on_applied = on_applied
        self._settings = settings or SubscriberSettings()
        self._is_in_doubt = True
        self._turn = asyncio.Lock()
        self._context = Context()
        self._events: Socket = self._context.socket(SUB)
        self._events.set(RCVHWM, _MAX_UNREAD_BATCHES)
        self._events.set(SUBSCRIBE, b"")
        self._events.connect(events_endpoint)

    def doubt(self) -> None:
        """The engine worked: silence from here on may mean that events were lost."""
        self._is_in_doubt = True

    async def run(self) -> None:
        """Reads until cancelled. Raises `BlockSizeMismatch`: this engine's events fit no lookup."""
        while True:
            if await self._events.poll(int(self._settings.check_after_s * 1000)):
                frames = await self._events.recv_multipart()
                async with self._turn:
                    await self._take_live(frames)
            elif self._is_in_doubt:
                self._is_in_doubt = False
                await self.catch_up()

    async def catch_up(self) -> None:
        """Applies everything that the engine has published until now, as far as it can tell."""
        async with self._turn:
            await self._replay()

    @asynccontextmanager
    async def paused(self) -> AsyncIterator[None]:
        """Caught up, and applying nothing meanwhile."""
        async with self._turn:
            await self._replay()
            yield

    def close(self) -> None:
        """After `run` has ended. Idempotent."""
        self._context.destroy(linger=0)

    async def _take_live(self, frames: Sequence[bytes]) -> None:
        numbered = self._decoded(frames)
        if numbered is None:
            return
        self.counters.live += 1
        arrival = self._feed.live(*numbered)
        if arrival is Arrival.DUPLICATE:
            self.counters.duplicates += 1
        if self._feed.missing_from is not None:
            await self._replay()
        self._on_applied()

    async def _replay(self) -> None:
        """From the first batch that is not there to the last one published."""
        self.counters.replays += 1
        if self._replay_endpoint is not None:
            try:
                async with asyncio.timeout(self._settings.replay_limit_s):
                    await self._take_replay(self._replay_endpoint)
            except TimeoutError:
                self.counters.failed_replays += 1
                logger.warning("the engine's replay of KV events did not end in time")
        if not self._feed.replay_ended():
            logger.warning("KV events were lost; the replica's blocks are known only in part")
        self._on_applied()

    async def _take_replay(self, endpoint: str) -> None:
        """On a socket of its own, so that no answer to an earlier question can interfere."""
        with self._context.socket(DEALER) as socket:
            socket.set(LINGER, 0)
            socket.set(RCVHWM, _MAX_UNREAD_BATCHES)
            socket.connect(endpoint)
            await socket.send_multipart((b"", self._feed.next_seq.to_bytes(8, "big")))
            while (frames := await socket.recv_multipart())[2:3] != [_END_OF_REPLAY]:
                numbered = self._decoded(frames[1:])
                if numbered is not None:
                    self.counters.replayed += 1
                    self._feed.replayed(*numbered)

    def _decoded(self, frames: Sequence[bytes]) -> tuple[int, EngineBatch] | None:
        """None, and counted, where it is no batch; one that cannot be read is a gap."""
        if len(frames) != 3 or len(frames[1]) != 8:
            self.counters.garbage += 1
            return None
        try:
            batch = decode_engine_batch(frames[2])
        except MalformedMessage:
            self.counters.garbage += 1
            return None
        self.counters.skipped += batch.skipped
        return int.from_bytes(frames[1], "big"), batch
