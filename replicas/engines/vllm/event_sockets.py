"""Where the engine publishes its KV events: two Unix sockets in a folder of our own.

The events carry prompts as token ids, and salts: nobody else may read them, no network address is
ever bound.
"""

from vllm.config.kv_events import KVEventsConfig

from replicas.engines.socket_folder import SocketFolder


class EventSockets:
    """Removed by `close`, or after a kill by the next engine's start."""

    def __init__(self) -> None:
        self._folder = SocketFolder("warmpath-kv-events-")
        self.events_endpoint = f"ipc://{self._folder.path}/events"
        self.replay_endpoint = f"ipc://{self._folder.path}/replay"

    def config(self) -> KVEventsConfig:
        return KVEventsConfig(
            enable_kv_cache_events=True,
            publisher="zmq",
            endpoint=self.events_endpoint,
            replay_endpoint=self.replay_endpoint,
        )

    def close(self) -> None:
        self._folder.close()
