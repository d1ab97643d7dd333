"""What the context manager is told of bounds, times and the place of its journal."""

import hashlib
from dataclasses import dataclass

import msgspec


@dataclass(frozen=True, slots=True)
class ContextSettings:
    """Of one `application`. `journal` is a SQLite file's path, a Redis URL or None for the default.

    `max_waiting` turns wait on one context. `max_bytes` bounds all histories in memory; what forks
    share counts once.
    """

    application: str
    journal: str | None = None
    lease_s: float = 10.0
    max_wait_s: float = 60.0
    max_contexts_per_tenant: int = 10_000
    max_tokens_per_tenant: int = 67_108_864
    max_contexts: int = 200_000
    max_bytes: int = 4 * 1024**3
    max_waiting: int = 16
    tombstone_s: float = 3600.0
    restart_floor_s: float = 60.0
    sweep_interval_s: float = 0.5

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.packed()).hexdigest()

    def packed(self) -> bytes:
        return msgspec.msgpack.encode(self)


def unpack_settings(packed: bytes) -> ContextSettings:
    """Raises `msgspec.MsgspecError` on anything else."""
    return msgspec.msgpack.decode(packed, type=ContextSettings)
