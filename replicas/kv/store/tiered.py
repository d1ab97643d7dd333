"""All tiers of a store as one: memory first, what falls out of it below, and back on a hit."""

import asyncio
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import asdict
from functools import partial
from typing import Generic, Protocol, TypeVar

from replicas.kv.store.contents import Changes, Held, StoreContents, StoredObject
from replicas.kv.store.lower_tiers import LowerTiers
from replicas.kv.store.objects import Bytes
from replicas.kv.store.tier import Tier, TierCounts

Handle = TypeVar("Handle")


class Keeper(Protocol[Handle]):
    """How a store's owner puts bytes into memory and looks at them; from any thread, may raise."""

    def keep(self, data: Bytes) -> Handle: ...

    def look(self, handle: Handle) -> Bytes: ...


class TieredContents(Generic[Handle]):
    """`memory` with `tiers` below, the nearest first. All may be called from any thread; nothing
    waits for a tier below but `fetch`.

    At most `waiting_bytes` are kept beyond memory's budget while they wait to be written below.
    """

    def __init__(
        self,
        memory: StoreContents[Handle],
        keeper: Keeper[Handle],
        tiers: Sequence[Tier],
        *,
        waiting_bytes: int,
    ) -> None:
        self._memory = memory
        self._keeper = keeper
        self._lock = threading.RLock()
        self._changes = Changes()
        self._counts = TierCounts()
        self._rising: dict[bytes, Future[Handle | None]] = {}
        self._below = LowerTiers(tiers, waiting_bytes=waiting_bytes, watcher=self)

    def __len__(self) -> int:
        """Objects in memory."""
        return len(self._memory)

    @property
    def used_bytes(self) -> int:
        """Of memory."""
        return self._memory.used_bytes

    @property
    def room_bytes(self) -> int:
        """What may still come into memory without anything leaving it."""
        return self._memory.room_bytes

    def offer(self, stored: StoredObject) -> bool:
        """Whether it is wanted. One that is here counts as used, and stays for reuse once asked."""
        with self._lock:
            is_new_here = self._memory.offer(stored)
            is_new_below = self._below.offer(stored)
            return is_new_here and is_new_below

    def put(self, stored: StoredObject, handle: Handle) -> None:
        """One that is here already is kept as it is."""
        with self._lock:
            if self.offer(stored):
                self._counts.written_bytes += stored.size_bytes
                self._changes.add(stored)
                self._enter(stored, handle)

    def find(self, key: bytes) -> Handle | None:
        """A use of an object that is in memory."""
        with self._lock:
            handle = self._memory.find(key)
            self._counts.hits += handle is not None
            self._counts.misses += handle is None
            return handle

    async def fetch(self, keys: Sequence[bytes], timeout_s: float) -> list[Handle | None]:
        """Uses of objects; those of lower tiers come back to memory first. What takes longer than
        `timeout_s` is None here and may be found the next time."""
        with self._lock:
            found = [self._sought(key) for key in keys]
        rising = [asyncio.wrap_future(item) for item in found if isinstance(item, Future)]
        if rising:
            await asyncio.wait(rising, timeout=timeout_s)
        return [_outcome(item) if isinstance(item, Future) else item for item in found]

    def discard(self, keys: Sequence[bytes]) -> None:
        """From all tiers."""
        with self._lock:
            for stored in filter(None, map(self.get, keys)):
                self._changes.remove(stored)
            self._memory.discard(keys)
            self._below.discard(keys)

    def claim(self, keys: Sequence[bytes], *, is_claimed: bool) -> None:
        """Whether contexts claim these, from here on; the claimed leave a tier after all others."""
        with self._lock:
            self._memory.claim(keys, is_claimed=is_claimed)
            self._below.claim(keys, is_claimed=is_claimed)

    def get(self, key: bytes) -> StoredObject | None:
        """What is known of an object that is here; no use of it."""
        with self._lock:
            return self._memory.get(key) or self._below.find(key)

    def claimed(self) -> list[StoredObject]:
        """What contexts claim of what is in memory, the latest used first. O(objects)."""
        with self._lock:
            return self._memory.claimed()

    def objects(self) -> list[StoredObject]:
        """Of all tiers. O(objects)."""
        with self._lock:
            below = {stored.key: stored for stored in self._below.objects()}
            here = {stored.key: stored for stored in self._memory.objects()}
            return list((below | here).values())

    def take_changes(self) -> Changes:
        """The net changes since the last call; at most as many as there were objects."""
        with self._lock:
            changes, self._changes = self._changes, Changes()
            return changes

    def counts(self) -> dict[str, float]:
        """Of each tier, its name before the figure's: objects, bytes, and `TierCounts`."""
        with self._lock:
            sizes = {"memory": (len(self._memory), self._memory.used_bytes)} | self._below.sizes()
            tiers = {"memory": self._counts} | self._below.counts
            figures: dict[str, float] = {}
            for name, counts in tiers.items():
                objects, size_bytes = sizes[name]
                row = {"objects": objects, "bytes": size_bytes, **asdict(counts)}
                figures |= {f"{name}_{figure}": value for figure, value in row.items()}
            return figures

    def flush(self, timeout_s: float) -> None:
        """Returns when all that left memory is written below. Raises `TimeoutError`."""
        self._below.flushed().result(timeout_s)

    def close(self) -> None:
        self._below.close()

    def arrived(self, stored: StoredObject) -> None:
        """Some tier has it from earlier."""
        with self._lock:
            if stored.key not in self._memory:
                self._changes.add(stored)

    def departed(self, stored: StoredObject) -> None:
        """No tier below has it any more."""
        with self._lock:
            if stored.key not in self._memory:
                self._changes.remove(stored)

    def _sought(self, key: bytes) -> "Handle | Future[Handle | None] | None":
        handle = self.find(key)
        if handle is not None:
            return handle
        stored = self._below.find(key)
        return None if stored is None else self._risen(stored)

    def _risen(self, stored: StoredObject) -> "Future[Handle | None]":
        """The object once it is in memory again; one for all who ask meanwhile."""
        rising = self._rising.get(stored.key)
        if rising is None:
            rising = self._rising[stored.key] = Future()
            fetched = self._below.fetch(stored.key)
            fetched.add_done_callback(partial(self._raise, stored, rising))
        return rising

    def _raise(
        self,
        stored: StoredObject,
        rising: "Future[Handle | None]",
        fetched: "Future[Bytes | None]",
    ) -> None:
        handle = None
        try:
            data = fetched.result()
            handle = None if data is None else self._keeper.keep(data)
        finally:
            with self._lock:
                del self._rising[stored.key]
                is_wanted = self._below.find(stored.key) is not None
                if handle is not None and is_wanted and stored.key not in self._memory:
                    self._enter(stored, handle)
            rising.set_result(handle if is_wanted else None)

    def _enter(self, stored: StoredObject, handle: Handle) -> None:
        for held in self._memory.put(stored, handle):
            self._let_go(held)

    def _let_go(self, held: Held[Handle]) -> None:
        self._counts.evictions += 1
        if not self._below.take(held.stored, partial(self._keeper.look, held.handle)):
            self._changes.remove(held.stored)


def _outcome(rising: "Future[Handle | None]") -> Handle | None:
    return rising.result() if rising.done() else None
