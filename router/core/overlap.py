"""How much of a prompt each replica holds, from the pieces of its chain."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from router.core.chain_map import ChainMap, Piece
from router.core.holder_sets import unpack
from router.core.segments import MAX_SEGMENT_BLOCKS
from router.core.types import Tier, Value

Depths = NDArray[np.int32]

_Share = tuple[int, int]
"""So many blocks of a prompt, and the number of the set of those that hold them."""

_MAX_KNOWN = 1024
_FEW_PIECES = 4
_COUNTED_AT_ONCE = 255
"""Pieces whose bits can be added up in one byte."""


class Overlap(Value, frozen=True, eq=False):
    """Leading blocks of one prompt by slot. The arrays are not to be written.

    `tiers`, int32 [3, max_replicas]: row t counts the leading blocks that are each held at tier t
    or a faster one, so row 0 is what the GPU holds. `speculative`, int32 [max_replicas]: the same
    as row 0 where blocks that a booking is about to compute count as well.
    """

    tiers: Depths
    speculative: Depths


class OverlapReader:
    """Turns pieces into depths for all slots at once. O(pieces · max_replicas)."""

    def __init__(self, chains: ChainMap, max_replicas: int) -> None:
        self._holders = chains.segments.holders
        self._sets = chains.sets
        self._slots = max_replicas
        # Prompts that differ behind a shared prefix ask for the same depths again and again.
        self._known: dict[tuple[_Share, ...], Depths] = {}
        self._version = chains.sets.version
        self._nothing = np.zeros((len(Tier), max_replicas), np.int32)
        self._nothing.flags.writeable = False
        # Multiplying by an array saves numpy the conversion of the number, half of the time.
        self._lengths = [np.array(n, np.int32) for n in range(MAX_SEGMENT_BLOCKS + 1)]

    def tiers(self, pieces: Sequence[Piece]) -> Depths:
        """As `Overlap.tiers`. Not to be written."""
        if not pieces:
            return self._nothing
        if self._sets.version != self._version:
            self._version = self._sets.version
            self._known.clear()
        holders = self._holders
        shape = tuple([(length, holders[segment]) for length, segment in pieces])
        known = self._known.get(shape)
        if known is None:
            if len(self._known) >= _MAX_KNOWN:
                self._known.clear()
            few = len(pieces) <= _FEW_PIECES
            known = self._known[shape] = self._of_few(shape) if few else self._of_many(shape)
        return known

    def _of_few(self, shape: Sequence[_Share]) -> Depths:
        standing = self._sets.standing(tuple([number for _, number in shape]))
        depths = standing[0] * self._lengths[shape[0][0]]
        for held, (length, _) in zip(standing[1:], shape[1:], strict=True):
            depths += held * self._lengths[length]
        return depths

    def _of_many(self, shape: Sequence[_Share]) -> Depths:
        tiers = len(Tier) if self._sets.has_lower_tiers else 1
        rows = self._sets.rows[[number for _, number in shape], :tiers]
        held = np.bitwise_or.accumulate(rows, axis=1)
        alive = np.bitwise_and.accumulate(held, axis=0)
        lengths = np.array([length for length, _ in shape])
        depths = np.zeros((tiers, self._slots), np.int32)
        for start in range(0, len(shape), _COUNTED_AT_ONCE):
            stop = start + _COUNTED_AT_ONCE
            depths += self._depths(alive[start:stop], lengths[start:stop])
            if not alive[min(stop, len(shape)) - 1].any():
                break
        return np.repeat(depths, len(Tier) // tiers, axis=0)

    def _depths(self, alive: NDArray[np.uint64], lengths: NDArray[np.int64]) -> Depths:
        """A replica that has fallen out stays out, so its share of pieces is a mere count."""
        bits = unpack(alive)[..., : self._slots]
        counts = np.add.reduce(bits, axis=0, dtype=np.uint8)
        reached = np.concatenate((np.zeros(1, np.int32), np.cumsum(lengths, dtype=np.int32)))
        depths: Depths = reached[counts]
        return depths
