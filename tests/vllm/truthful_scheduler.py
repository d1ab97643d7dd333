"""A scheduler that tells which blocks its engine holds: the engine's own truth, for tests only.

Loaded inside the engine's process by its name, see `scheduler_cls` of vLLM.
"""

import os
import threading
from typing import Any

import msgspec
import zmq
from vllm.v1.core.kv_cache_utils import get_block_hash
from vllm.v1.core.sched.scheduler import Scheduler

TRUTH_ENDPOINT = "WARMPATH_TEST_TRUTH"
"""The environment variable with the socket's address."""


class TruthfulScheduler(Scheduler):
    """Answers every message on the socket with the copies of each cached hash."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        threading.Thread(target=self._answer, daemon=True).start()

    def _answer(self) -> None:
        socket = zmq.Context.instance().socket(zmq.REP)
        socket.bind(os.environ[TRUTH_ENDPOINT])
        while True:
            socket.recv()
            socket.send(msgspec.msgpack.encode(self._copies()))

    def _copies(self) -> dict[bytes, int]:
        cached = self.kv_cache_manager.block_pool.cached_block_hash_to_block._cache
        return {
            get_block_hash(key): len(blocks) if isinstance(blocks, dict) else 1
            for key, blocks in list(cached.items())
        }


async def copies(endpoint: str) -> dict[bytes, int]:
    """How many copies of each block the engine holds, by the hash's last 8 bytes as in events."""
    context = zmq.asyncio.Context()
    with context.socket(zmq.REQ) as socket:
        socket.linger = 0
        socket.connect(endpoint)
        await socket.send(b"")
        answer = msgspec.msgpack.decode(await socket.recv(), type=dict[bytes, int])
    context.term()
    return {block_hash[-8:]: count for block_hash, count in answer.items()}
