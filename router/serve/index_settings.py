"""What the block index's actor is told of bounds and times; policies travel in each call."""

import hashlib
from dataclasses import dataclass

import msgspec


@dataclass(frozen=True, slots=True)
class IndexSettings:
    """Replicas, blocks and bookings are caps; times are in seconds.

    A replica silent for `stale_after_s` is no candidate, for `forget_after_s` it is forgotten.
    """

    max_replicas: int = 512
    max_blocks: int = 4_000_000
    max_bookings: int = 65_536
    speculative_ttl_s: float = 30.0
    stale_after_s: float = 5.0
    forget_after_s: float = 30.0
    sweep_interval_s: float = 0.25

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.packed()).hexdigest()

    def packed(self) -> bytes:
        return msgspec.msgpack.encode(self)


def unpack_settings(packed: bytes) -> IndexSettings:
    """Raises `msgspec.MsgspecError` on anything else."""
    return msgspec.msgpack.decode(packed, type=IndexSettings)
