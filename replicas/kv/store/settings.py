"""What a node's store is told of its place, bounds and times. Values only."""

import hashlib
from urllib.parse import quote

import msgspec

from router.core.types import StoreId
from router.kv_store_config import KvStoreConfig

PROTOCOL = 1
"""Changes with the meaning of any call of the store; stores of another number have other names."""

GIB = 2**30
_PREFIX = "kv-store:"
_DIGEST_CHARS = 12


class StoreSettings(msgspec.Struct, frozen=True):
    """The store of one `application` on one node. Times are in seconds.

    A replica silent for `lease_s` needs it no more. `linger_s` after nobody needs it, the store has
    `handover_s` to give away what contexts claim, and ends. Contexts are asked for their claims
    every `claims_interval_s`; what was saved for them alone, and is older than `unclaimed_after_s`
    and claimed by none, goes.
    """

    application: str
    node_id: str
    memory_bytes: int
    disk_folder: str | None = None
    disk_bytes: int = 0
    redis: str | None = None
    redis_bytes: int = 0
    lease_s: float = 10.0
    linger_s: float = 30.0
    handover_s: float = 20.0
    claims_interval_s: float = 5.0
    unclaimed_after_s: float = 20.0
    protocol: int = PROTOCOL

    @property
    def store_id(self) -> StoreId:
        """The actor's name: another one with other settings, whose store then takes over."""
        digest = hashlib.sha256(self.packed()).hexdigest()[:_DIGEST_CHARS]
        return StoreId(f"{family_prefix(self.application)}{self.node_id}:{digest}")

    def packed(self) -> bytes:
        return msgspec.msgpack.encode(self)


def family_prefix(application: str) -> str:
    """How the names of all stores of an application begin, on all nodes."""
    return f"{_PREFIX}{quote(application, safe='')}:"


def store_settings(config: KvStoreConfig, application: str, node_id: str) -> StoreSettings:
    return StoreSettings(
        application,
        node_id,
        memory_bytes=int(config.memory_gib * GIB),
        disk_folder=config.disk_folder,
        disk_bytes=int(config.disk_gib * GIB),
        redis=config.redis,
        redis_bytes=int(config.redis_gib * GIB),
    )


def unpack_settings(packed: bytes) -> StoreSettings:
    """Raises `msgspec.MsgspecError` on anything else."""
    return msgspec.msgpack.decode(packed, type=StoreSettings)
