"""Whole blocks of an engine's KV pool in host memory, as bytes.

A block's part in a layer is copied as it lies; what is inside is the attention kernel's own, and
only the same kind of engine (one namespace) can read it. A payload holds the blocks of a layer
beside each other, as a pool does: most copies are then of many blocks at once. The processor writes
large copies past its cache; small ones take it twice as long.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Look = Callable[[Bytes], None]


class BlockPool(Protocol):
    """Where a rank's KV lies. `block_bytes` are those of one block in all layers of the rank."""

    @property
    def block_bytes(self) -> int: ...

    def read(self, block_ids: Sequence[int], target: Bytes) -> None:
        """Copies blocks into `target`, a payload of just these."""
        ...

    def write(self, block_ids: Sequence[int], source: Bytes, skipped: int, look: Look) -> None:
        """Copies the blocks of the payload `source` from its `skipped`-th on over blocks that
        nothing else uses meanwhile. `look` is given all of `source`, part after part, each just
        before it is copied."""
        ...


class HostPool:
    """A pool in host memory: for each layer its bytes [blocks, layer bytes], shared, not copied."""

    def __init__(self, layers: Sequence[Bytes]) -> None:
        self._layers = tuple(layers)

    @property
    def block_bytes(self) -> int:
        return sum(layer.shape[1] for layer in self._layers)

    def read(self, block_ids: Sequence[int], target: Bytes) -> None:
        runs = list(_runs(block_ids))
        for layer, part in self._parts(target):
            for rows, blocks in runs:
                part[rows] = layer[blocks]

    def write(self, block_ids: Sequence[int], source: Bytes, skipped: int, look: Look) -> None:
        """What was looked at is still in the processor's cache when it is copied."""
        runs = list(_runs(block_ids))
        for layer, part in self._parts(source):
            look(part)
            for rows, blocks in runs:
                layer[blocks] = part[skipped:][rows]

    def _parts(self, data: Bytes) -> Iterator[tuple[Bytes, Bytes]]:
        """Each layer with its part [blocks, layer bytes] of a payload."""
        blocks = len(data) // self.block_bytes
        start = 0
        for layer in self._layers:
            end = start + blocks * layer.shape[1]
            yield layer, data[start:end].reshape(blocks, -1)
            start = end


def _runs(block_ids: Sequence[int]) -> Iterator[tuple[slice, slice]]:
    """Where neighbours in `block_ids` are neighbours in the pool too, as slices of both: numpy
    copies these twice as fast as by a list of places."""
    first = 0
    for place in range(1, len(block_ids) + 1):
        if place == len(block_ids) or block_ids[place] != block_ids[place - 1] + 1:
            start = block_ids[first]
            yield slice(first, place), slice(start, start + place - first)
            first = place
