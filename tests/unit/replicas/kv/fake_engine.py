"""The sockets of an engine, with every fault that a network or an engine could add."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
from zmq.asyncio import Context, Socket
from zmq.constants import ROUTER, XPUB

from replicas.kv.events import KVEvent

END = b"\xff" * 8


def wire(seq: int, *events: KVEvent, at_s: float | None = None) -> bytes:
    """One batch; unless told otherwise it is published `seq` seconds after the epoch."""
    maps = [msgspec.to_builtins(event) | {"type": type(event).__name__} for event in events]
    return msgspec.msgpack.encode([float(seq) if at_s is None else at_s, maps, 0])


class FakeEngine:
    """Publishes what it is told to. `kept` is what a replay gives, by number."""

    def __init__(self, folder: Path) -> None:
        self.events_endpoint = f"ipc://{folder}/events"
        self.replay_endpoint = f"ipc://{folder}/replay"
        self.kept: dict[int, bytes] = {}
        self.asked: list[int] = []
        self._context = Context()
        self._events: Socket = self._context.socket(XPUB)
        self._replay: Socket = self._context.socket(ROUTER)
        self._events.bind(self.events_endpoint)
        self._replay.bind(self.replay_endpoint)

    @classmethod
    @asynccontextmanager
    async def running(cls, folder: Path) -> AsyncIterator["FakeEngine"]:
        engine = cls(folder)
        yield engine
        engine._context.destroy(linger=0)

    async def subscribed(self) -> None:
        """Somebody listens, so that nothing published from here on is lost."""
        await self._events.recv()

    async def publish(self, seq: int, payload: bytes, *, keep: bool = True) -> None:
        if keep:
            self.kept[seq] = payload
        await self.send([b"", seq.to_bytes(8, "big"), payload])

    async def send(self, frames: Sequence[bytes]) -> None:
        await self._events.send_multipart(frames)

    async def serve_replays(self) -> None:
        while True:
            client, _, first = await self._replay.recv_multipart()
            self.asked.append(int.from_bytes(first, "big"))
            for seq in sorted(self.kept):
                if seq >= self.asked[-1]:
                    number = seq.to_bytes(8, "big")
                    await self._replay.send_multipart((client, b"", b"", number, self.kept[seq]))
            await self._replay.send_multipart((client, b"", b"", END, b""))
