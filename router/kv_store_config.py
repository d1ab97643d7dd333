"""The section `kv_store`: KV that outlives the replica that computed it."""

from pathlib import PurePosixPath

from pydantic import Field, model_validator

from router.config_section import Section

_REDIS_SCHEMES = ("redis://", "rediss://", "unix://")


class KvStoreConfig(Section):
    """One store on each node that has a replica; sizes are of one node's store.

    `memory_gib` lies in Ray's object store, of which a store takes at most a part. An object is of
    `object_blocks` blocks. What falls out of memory goes to `disk_folder`, and what falls out of
    there to the Redis at `redis`, where these are given. `held_gib` bounds what one engine holds in
    host memory on its way to the store. A load that takes longer than `load_timeout_s` is computed.
    """

    enabled: bool = False
    memory_gib: float = Field(2.0, gt=0)
    object_blocks: int = Field(16, ge=1, le=1024)
    disk_folder: str | None = Field(None, min_length=1)
    disk_gib: float = Field(16.0, gt=0)
    redis: str | None = Field(None, min_length=1)
    redis_gib: float = Field(16.0, gt=0)
    held_gib: float = Field(0.25, gt=0)
    load_timeout_s: float = Field(2.0, gt=0)

    @model_validator(mode="after")
    def _reachable(self) -> "KvStoreConfig":
        if self.disk_folder is not None and not PurePosixPath(self.disk_folder).is_absolute():
            raise ValueError("disk_folder is not an absolute path")
        if self.redis is not None and not self.redis.startswith(_REDIS_SCHEMES):
            raise ValueError(f"redis does not begin with one of {', '.join(_REDIS_SCHEMES)}")
        return self
