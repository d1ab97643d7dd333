"""Which prefixes each replica was sent lately: a router's own memory, without a replica's word.

Pure: the time is an argument. What a replica evicted, lost or never computed it does not know.
"""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from router.core.types import Slot, Value

Hashes = NDArray[np.uint64]

_NOTHING: Mapping[int, float] = MappingProxyType({})


class HistoryBounds(Value, frozen=True):
    """A block is remembered `ttl_s` after it was last sent, and by replica at most
    `max_blocks_per_replica`, those sent longest ago leaving first."""

    ttl_s: float
    max_blocks_per_replica: int


class RoutingHistory:
    """Blocks by slot with the time at which each is forgotten, oldest first.

    A prompt's blocks enter from its end to its start. So a block never outlives the ones before it,
    and what is left of a prompt is always a prefix.
    """

    def __init__(self, bounds: HistoryBounds) -> None:
        self._bounds = bounds
        self._sent: dict[int, OrderedDict[int, float]] = {}

    def depths(self, hashes: Hashes, slots: NDArray[np.int64], now: float) -> NDArray[np.int32]:
        """Leading blocks of a prompt that each of `slots` was sent: int32 [slots].

        O(slots · log blocks). `hashes` are chained, here as everywhere.
        """
        keys: list[int] = hashes.tolist()
        depths = [self._depth(self._sent.get(slot, _NOTHING), keys, now) for slot in slots.tolist()]
        return np.array(depths, np.int32)

    def record(self, slot: Slot, hashes: Hashes, now: float) -> None:
        """A prompt was sent there. O(its blocks) amortised."""
        sent = self._sent.setdefault(slot, OrderedDict())
        forgotten_at = now + self._bounds.ttl_s
        for key in reversed(hashes.tolist()):
            sent[key] = forgotten_at
            sent.move_to_end(key)
        while len(sent) > self._bounds.max_blocks_per_replica:
            sent.popitem(last=False)
        while sent and next(iter(sent.values())) <= now:
            sent.popitem(last=False)

    def forget(self, slot: Slot) -> None:
        """The replica is gone."""
        self._sent.pop(slot, None)

    @staticmethod
    def _depth(sent: Mapping[int, float], keys: Sequence[int], now: float) -> int:
        low, high = 0, len(keys) if sent else 0
        while low < high:
            middle = (low + high) // 2
            if sent.get(keys[middle], now) > now:
                low = middle + 1
            else:
                high = middle
        return low
