"""Keeps a chain map within its cap and takes back what is dead, in bounded steps."""

import numpy as np

from router.core.block_table import OFFSET_BITS
from router.core.chain_map import ChainMap
from router.core.set_contents import EMPTY

_EVICTION_WINDOW = 4096
_SWEEP_LANES = 65_536


class Room:
    """Evicts the least recently used segments past `max_blocks` live blocks.

    Recency is compared within windows of segments, so eviction is exact for small maps and near
    enough for large ones. Evicted blocks turn dead at once; lanes follow in `reclaim`.
    """

    def __init__(self, chains: ChainMap, max_blocks: int) -> None:
        self.evicted_blocks = 0
        self._chains = chains
        self._max_blocks = max_blocks
        self._evict_from = 1
        self._reclaim_from = 0

    def relieve(self, inserted: int) -> None:
        """After `inserted` blocks came in: evicts what is too much, reclaims in proportion."""
        chains = self._chains
        excess = chains.live_blocks - self._max_blocks
        if excess > 0:
            self._evict(excess)
        if chains.dead_blocks * 16 > self._max_blocks:
            self.reclaim(16 * inserted)
        while chains.dead_blocks * 4 > self._max_blocks:
            self.reclaim(_SWEEP_LANES)

    def reclaim(self, max_lanes: int = _SWEEP_LANES) -> None:
        """Takes back the lanes of dead segments among the next `max_lanes` lanes."""
        chains = self._chains
        if not chains.dead_blocks:
            return
        lanes = chains.table.window(self._reclaim_from, max_lanes)
        self._reclaim_from += max_lanes
        if self._reclaim_from >= chains.table.total_lanes:
            self._reclaim_from = 0
        segments = chains.table.places[lanes] >> OFFSET_BITS
        is_dead = chains.segments.holders_array[segments] == EMPTY
        chains.table.release(lanes[is_dead])
        dead, counts = np.unique(segments[is_dead], return_counts=True)
        for segment, count in zip(dead.tolist(), counts.tolist(), strict=True):
            chains.thin(segment, count)

    def _evict(self, excess: int) -> None:
        fields = self._chains.segments
        while excess > 0:
            numbers = np.arange(
                self._evict_from, min(self._evict_from + _EVICTION_WINDOW, fields.end)
            )
            self._evict_from += _EVICTION_WINDOW
            if self._evict_from >= fields.end:
                self._evict_from = 1
            live = numbers[
                (fields.count_array[numbers] > 0) & (fields.holders_array[numbers] != EMPTY)
            ]
            oldest = live[np.argsort(fields.stamp_array[live])]
            for segment in oldest[: max(1, live.size // 8)].tolist():
                if excess <= 0:
                    break
                excess -= fields.count[segment]
                self.evicted_blocks += fields.count[segment]
                self._chains.set_holders(segment, EMPTY)
