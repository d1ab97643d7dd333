"""What every tier below a store's memory can do, and what became of what it was asked."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from replicas.kv.store.contents import StoredObject
from replicas.kv.store.objects import Bytes
from router.core.errors import WarmpathError


class TierFailed(WarmpathError):
    """A tier could not do what it was asked: its disk is full, its server is away."""


class Tier(Protocol):
    """Some place for objects, within a budget of its own. Blocks; used by one thread.

    All methods may raise `TierFailed`. What is not there is no error.
    """

    @property
    def name(self) -> str: ...

    def scan(self) -> list[StoredObject]:
        """What is there from earlier, those to leave first first."""
        ...

    def victims(self, stored: StoredObject) -> list[StoredObject]:
        """What has to leave before it can be written: itself alone where it cannot have room."""
        ...

    def write(self, stored: StoredObject, data: Bytes) -> None:
        """After its victims were removed."""
        ...

    def read(self, key: bytes) -> Bytes | None:
        """Whole and proven to be what its key says. A use of the object."""
        ...

    def remove(self, keys: Sequence[bytes]) -> None: ...

    def claim(self, keys: Sequence[bytes], *, is_claimed: bool) -> None:
        """Whether contexts claim these, from here on; the claimed leave after all others."""
        ...

    def size(self) -> tuple[int, int]:
        """Objects and bytes, as of the last call that changed them; asks nobody."""
        ...

    def close(self) -> None: ...


@dataclass(slots=True)
class TierCounts:
    """Since the start. `failures`: calls that failed; `dropped`: objects lost to that, or to too
    much waiting to be written."""

    hits: int = 0
    misses: int = 0
    evictions: int = 0
    failures: int = 0
    dropped: int = 0
    read_bytes: int = 0
    read_s: float = 0.0
    written_bytes: int = 0
    written_s: float = 0.0
