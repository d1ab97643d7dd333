"""What falls out of a store's memory and comes back: tiers below, worked by one thread.

Objects in a lower tier stay there while they are in memory too: they never change, and need not be
written when memory lets them go again.
"""

import logging
import threading
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Protocol

from replicas.kv.store.contents import StoredObject
from replicas.kv.store.objects import Bytes
from replicas.kv.store.tier import Tier, TierCounts
from replicas.kv.store.tier_chain import TierChain
from replicas.kv.store.two_lanes import TwoLanes

_log = logging.getLogger(__name__)

Read = Callable[[], Bytes]


class Watcher(Protocol):
    """Told from the tiers' thread what came to be, or ceased to be, in any of them."""

    def arrived(self, stored: StoredObject) -> None: ...

    def departed(self, stored: StoredObject) -> None: ...


@dataclass(frozen=True, slots=True)
class Falling:
    """An object on its way down, and how to get its bytes; that may raise anything."""

    stored: StoredObject
    read: Read


class LowerTiers:
    """`tiers` with the nearest first; with none, everything falls through.

    At most `waiting_bytes`, or one object, wait to be written; what is past that is dropped. All
    methods may be called from any thread and return at once.
    """

    def __init__(self, tiers: Sequence[Tier], *, waiting_bytes: int, watcher: Watcher) -> None:
        self._chain = TierChain(tiers, self._lose)
        self._is_empty = not tiers
        self._waiting_bytes = waiting_bytes
        self._watcher = watcher
        self._lock = threading.Lock()
        self._here: dict[bytes, StoredObject] = {}
        self._falling: dict[bytes, Falling] = {}
        self._lanes = TwoLanes("kv-tiers")
        if tiers:
            self._lanes.later(self._scan)

    @property
    def counts(self) -> dict[str, TierCounts]:
        return self._chain.counts

    def find(self, key: bytes) -> StoredObject | None:
        """What is known of it, without asking a tier."""
        with self._lock:
            return self._here.get(key)

    def offer(self, stored: StoredObject) -> bool:
        """Whether it is wanted. One that is here stays for reuse once asked."""
        with self._lock:
            present = self._here.get(stored.key)
            if present is not None and stored.is_for_reuse:
                self._here[stored.key] = stored
            return present is None

    def objects(self) -> list[StoredObject]:
        with self._lock:
            return list(self._here.values())

    def take(self, stored: StoredObject, read: Read) -> bool:
        """What memory lets go; false where it is lost by that."""
        with self._lock:
            if stored.key in self._here:
                return True
            if not self._has_room(stored):
                return False
            self._here[stored.key] = stored
            self._falling[stored.key] = falling = Falling(stored, read)
        self._lanes.later(lambda: self._settle(falling))
        return True

    def fetch(self, key: bytes) -> Future[Bytes | None]:
        """Its bytes, proven, or None."""
        future: Future[Bytes | None] = Future()
        self._lanes.urgent(lambda: _resolve(future, lambda: self._read(key)))
        return future

    def discard(self, keys: Collection[bytes]) -> None:
        """Gone from here at once, from the tiers soon."""
        with self._lock:
            known = [key for key in keys if self._here.pop(key, None)]
        if known:
            self._lanes.later(lambda: self._chain.each(lambda tier: tier.remove(known)))

    def claim(self, keys: Collection[bytes], *, is_claimed: bool) -> None:
        with self._lock:
            known = [key for key in keys if key in self._here]
        if known:
            self._lanes.later(
                lambda: self._chain.each(lambda tier: tier.claim(known, is_claimed=is_claimed))
            )

    def flushed(self) -> Future[None]:
        """Done once all that waits has been written."""
        future: Future[None] = Future()
        self._lanes.later(lambda: future.set_result(None))
        return future

    def sizes(self) -> dict[str, tuple[int, int]]:
        """Objects and bytes of each tier."""
        return self._chain.sizes()

    def close(self) -> None:
        """What still waits is lost."""
        self._lanes.close()
        self._chain.close()

    def _has_room(self, stored: StoredObject) -> bool:
        if self._is_empty:
            return False
        waiting_bytes = sum(item.stored.size_bytes for item in self._falling.values())
        if not waiting_bytes or waiting_bytes + stored.size_bytes <= self._waiting_bytes:
            return True
        self._chain.dropped()
        return False

    def _scan(self) -> None:
        for stored in self._chain.scan():
            with self._lock:
                is_known = self._here.setdefault(stored.key, stored) is not stored
            if not is_known:
                self._watcher.arrived(stored)

    def _settle(self, falling: Falling) -> None:
        """Puts down what waited, unless it was discarded meanwhile, or came once more."""
        stored = falling.stored
        if self._falling.get(stored.key) is not falling:
            return
        try:
            if self.find(stored.key) is not None:
                self._chain.write(stored, falling.read())
        except Exception:
            _log.exception("an object that left memory could not be read")
            self._lose(stored)
        finally:
            with self._lock:
                if self._falling.get(stored.key) is falling:
                    del self._falling[stored.key]

    def _lose(self, stored: StoredObject) -> None:
        with self._lock:
            was_here = self._here.pop(stored.key, None)
        if was_here is not None:
            self._watcher.departed(stored)

    def _read(self, key: bytes) -> Bytes | None:
        stored, falling = self.find(key), self._falling.get(key)
        if stored is None or falling is not None:
            return falling.read() if falling is not None else None
        data = self._chain.read(key)
        if data is None:
            self._lose(stored)
        return data


def _resolve(future: "Future[Bytes | None]", read: Callable[[], Bytes | None]) -> None:
    """Whatever becomes of it: somebody waits."""
    try:
        future.set_result(read())
    except Exception:
        _log.exception("an object of a lower tier could not be read")
        future.set_result(None)
