"""The tiers below a store's memory, in order: what one lets go falls to the next, and then out."""

import logging
import time
from collections.abc import Callable, Iterator, Sequence

from replicas.kv.store.contents import StoredObject
from replicas.kv.store.objects import Bytes
from replicas.kv.store.tier import Tier, TierCounts, TierFailed

_log = logging.getLogger(__name__)


class TierChain:
    """`tiers` with the nearest first; what falls out of the last is told to `on_loss`. Blocks; used
    by one thread. A tier that fails is counted and passed over."""

    def __init__(self, tiers: Sequence[Tier], on_loss: Callable[[StoredObject], None]) -> None:
        self.counts = {tier.name: TierCounts() for tier in tiers}
        self._tiers = tuple(tiers)
        self._on_loss = on_loss

    def scan(self) -> Iterator[StoredObject]:
        """What is there from earlier, in one or several tiers."""
        for tier in self._tiers:
            try:
                yield from tier.scan()
            except TierFailed as error:
                self._failed(tier, error)

    def write(self, stored: StoredObject, data: Bytes) -> None:
        """To the first tier that takes it."""
        self._sink(0, stored, data)

    def read(self, key: bytes) -> Bytes | None:
        """From the first tier that has it."""
        for tier in self._tiers:
            data = self._read_from(tier, key)
            if data is not None:
                return data
        return None

    def each(self, call: Callable[[Tier], None]) -> None:
        for tier in self._tiers:
            try:
                call(tier)
            except TierFailed as error:
                self._failed(tier, error)

    def sizes(self) -> dict[str, tuple[int, int]]:
        """Objects and bytes of each tier."""
        return {tier.name: tier.size() for tier in self._tiers}

    def dropped(self) -> None:
        """One came too fast for the nearest tier."""
        self.counts[self._tiers[0].name].dropped += 1

    def close(self) -> None:
        for tier in self._tiers:
            tier.close()

    def _sink(self, level: int, stored: StoredObject, data: Bytes) -> None:
        """To the first tier from `level` on that takes it."""
        if not any(self._write(place, stored, data) for place in range(level, len(self._tiers))):
            self._on_loss(stored)

    def _write(self, level: int, stored: StoredObject, data: Bytes) -> bool:
        tier = self._tiers[level]
        counts, began = self.counts[tier.name], time.monotonic()
        try:
            victims = tier.victims(stored)
            if stored in victims:
                return False
            for victim in victims:
                self._let_fall(level, victim)
            tier.write(stored, data)
        except TierFailed as error:
            self._failed(tier, error)
            counts.dropped += 1
            return False
        counts.written_bytes += stored.size_bytes
        counts.written_s += time.monotonic() - began
        return True

    def _let_fall(self, level: int, stored: StoredObject) -> None:
        tier = self._tiers[level]
        self.counts[tier.name].evictions += 1
        data = tier.read(stored.key) if level + 1 < len(self._tiers) else None
        tier.remove([stored.key])
        if data is None:
            self._on_loss(stored)
        else:
            self._sink(level + 1, stored, data)

    def _read_from(self, tier: Tier, key: bytes) -> Bytes | None:
        counts, began = self.counts[tier.name], time.monotonic()
        try:
            data = tier.read(key)
        except TierFailed as error:
            self._failed(tier, error)
            data = None
        if data is None:
            counts.misses += 1
            return None
        counts.hits += 1
        counts.read_bytes += data.nbytes
        counts.read_s += time.monotonic() - began
        return data

    def _failed(self, tier: Tier, error: TierFailed) -> None:
        self.counts[tier.name].failures += 1
        _log.warning("the %s tier of stored objects failed: %s", tier.name, error.message)
