"""A scheduler that says what its engine holds in router hashes, and may keep events to itself.

For tests only; loaded inside the engine's process by its name, see `scheduler_cls` of vLLM. The
hashes are computed from the engine's own requests, apart from all events.
"""

import os
import threading
from array import array
from pathlib import Path
from typing import Any

import msgspec
import zmq
from vllm.distributed.kv_events import BlockStored
from vllm.v1.core.kv_cache_utils import get_block_hash
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import Request

from router.core.hashing import NO_EXTRA_KEYS, hash_blocks, salt

FOLDER = "WARMPATH_TEST_WITNESSES"
"""The environment variable with the folder of the sockets, which are named by replicas' pids."""

BLOCKS = b"blocks"
WITHHOLD = b"withhold"
TELL = b"tell"


class WitnessScheduler(Scheduler):
    """Answers every question with the router hashes that it holds, unknown ones as 0.

    After `WITHHOLD` the next stored event is told to nobody, unless `TELL` comes before it.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._served: list[Request] = []
        self._names: dict[bytes, int] = {}
        self._withholds = False
        take = self.kv_cache_manager.take_events
        self.kv_cache_manager.take_events = lambda: self._told(take())
        threading.Thread(target=self._answer, daemon=True).start()

    def add_request(self, request: Request) -> None:
        self._served.append(request)
        super().add_request(request)

    def _told(self, events: list[Any]) -> list[Any]:
        kept_back = next((event for event in events if isinstance(event, BlockStored)), None)
        if not self._withholds or kept_back is None:
            return events
        self._withholds = False
        return [event for event in events if event is not kept_back]

    def _answer(self) -> None:
        socket = zmq.Context.instance().socket(zmq.REP)
        socket.bind(endpoint(os.environ[FOLDER], os.getppid()))
        while True:
            question = socket.recv()
            if question in (WITHHOLD, TELL):
                self._withholds = question == WITHHOLD
            socket.send(msgspec.msgpack.encode(self._blocks()))

    def _blocks(self) -> list[int]:
        """Of requests that are over the names are complete, and they are let go."""
        cached = list(self.kv_cache_manager.block_pool.cached_block_hash_to_block._cache)
        for request in list(self._served):
            is_over = request.is_finished()
            self._names |= _names(request, self.cache_config.block_size)
            if is_over:
                self._served.remove(request)
        return [self._names.get(get_block_hash(key), 0) for key in cached]


def _names(request: Request, block_size: int) -> dict[bytes, int]:
    """The router's hash of each block that the engine has hashed itself."""
    names = list(request.block_hashes)
    ids = array("I", list(request.all_token_ids)[: len(names) * block_size]).tobytes()
    keys = NO_EXTRA_KEYS if request.cache_salt is None else salt(request.cache_salt)
    return dict(zip(names, hash_blocks(ids, block_size, keys).tolist(), strict=True))


def endpoint(folder: str | Path, replica_pid: int) -> str:
    return f"ipc://{folder}/{replica_pid}"


def ask(folder: Path, replica_pid: int, question: bytes) -> set[int]:
    """The answer of the engine of one replica; raises `zmq.Again` after 5 s without one."""
    with zmq.Context() as context, context.socket(zmq.REQ) as socket:
        socket.linger = 0
        socket.rcvtimeo = 5000
        socket.connect(endpoint(folder, replica_pid))
        socket.send(question)
        return set(msgspec.msgpack.decode(socket.recv(), type=list[int]))
