"""KV events of the simulated engine on ZeroMQ, with vLLM's frames and its replay socket.

PUB: `[topic, seq, batch]`, `seq` 8 bytes big-endian from 0. ROUTER: a request `[b"", seq]` is
answered by every kept batch from `seq` on and an end marker of sequence -1.
"""

import asyncio
import logging
import time
from collections import deque
from dataclasses import dataclass

from zmq.asyncio import Context
from zmq.asyncio import Socket as AsyncSocket
from zmq.constants import DONTWAIT, PUB, ROUTER
from zmq.sugar.socket import Socket

from replicas.engines.socket_folder import SocketFolder
from replicas.sim.events import KVEvent, encode_batch

logger = logging.getLogger(__name__)

TOPIC = b""
KEPT_BATCHES = 10_000
END_OF_REPLAY = (-1).to_bytes(8, "big", signed=True)


@dataclass(frozen=True, slots=True)
class Endpoints:
    """ZeroMQ addresses to bind."""

    events: str
    replay: str


class SimEventPublisher:
    """Owns two sockets, by default in a folder that only this user may enter. One loop only."""

    def __init__(self, endpoints: Endpoints | None = None) -> None:
        self._folder = SocketFolder("warmpath-sim-events-")
        self._endpoints = endpoints or Endpoints(
            f"ipc://{self._folder.path}/events", f"ipc://{self._folder.path}/replay"
        )
        self._context = Context()
        self._events = self._context.socket(PUB, socket_class=Socket)
        self._replay: AsyncSocket = self._context.socket(ROUTER)
        _bind(self._events, self.events_endpoint)
        _bind(self._replay, self.replay_endpoint)
        self._kept: deque[tuple[bytes, bytes]] = deque(maxlen=KEPT_BATCHES)
        self._next_seq = 0
        self._task = asyncio.create_task(self._serve_replays(), name="sim-kv-replay")
        self._task.add_done_callback(_log_failure)

    @property
    def events_endpoint(self) -> str:
        return self._endpoints.events

    @property
    def replay_endpoint(self) -> str:
        return self._endpoints.replay

    def publish(self, events: tuple[KVEvent, ...]) -> None:
        """Sends one batch and keeps it for replay; subscribers that lag lose it, none blocks."""
        seq = self._next_seq.to_bytes(8, "big")
        payload = encode_batch(events, time.time())
        self._next_seq += 1
        self._kept.append((seq, payload))
        self._events.send_multipart((TOPIC, seq, payload), DONTWAIT)

    async def close(self) -> None:
        """Closes both sockets without lingering and removes the folder. Idempotent."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._context.destroy(linger=0)
        self._folder.close()

    async def _serve_replays(self) -> None:
        while True:
            frames = await self._replay.recv_multipart()
            if len(frames) != 3:
                logger.warning("dropped a replay request of %d frames", len(frames))
                continue
            await self._replay_from(frames[0], frames[2])

    async def _replay_from(self, client: bytes, first_seq: bytes) -> None:
        wanted = [kept for kept in self._kept if kept[0] >= first_seq]
        for seq, payload in wanted:
            await self._replay.send_multipart((client, b"", TOPIC, seq, payload))
        await self._replay.send_multipart((client, b"", b"", END_OF_REPLAY, b""))


def _bind(socket: Socket, endpoint: str) -> None:
    """The high-water mark lets a whole replay wait for a slow reader."""
    socket.set_hwm(2 * KEPT_BATCHES)
    socket.bind(endpoint)


def _log_failure(task: "asyncio.Task[None]") -> None:
    if not task.cancelled() and task.exception() is not None:
        logger.error("the replay of KV events stopped", exc_info=task.exception())
