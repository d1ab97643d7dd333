"""Where the engine publishes its KV events: two Unix sockets in a folder of our own.

The events carry prompts as token ids, and salts: nobody else may read them, no network address is
ever bound.
"""

import shutil
import tempfile
from pathlib import Path

from vllm.config.kv_events import KVEventsConfig


class EventSockets:
    """A folder with mode 0700, removed by `close`."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="warmpath-kv-"))
        self.events_endpoint = f"ipc://{self._folder}/events"
        self.replay_endpoint = f"ipc://{self._folder}/replay"

    def config(self) -> KVEventsConfig:
        return KVEventsConfig(
            enable_kv_cache_events=True,
            publisher="zmq",
            endpoint=self.events_endpoint,
            replay_endpoint=self.replay_endpoint,
        )

    def close(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)
