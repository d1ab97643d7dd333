"""Whole blocks of an engine's KV pool in host memory, as bytes.

A block is copied as it lies, layer after layer; what is inside is the attention kernel's own, and
only the same kind of engine (one namespace) can read it.
"""

from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]


class BlockPool(Protocol):
    """Where a rank's KV lies. `block_bytes` are those of one block in all layers of the rank."""

    @property
    def block_bytes(self) -> int: ...

    def read(self, block_ids: Sequence[int], target: Bytes) -> None:
        """Copies blocks into `target` [blocks, block bytes]."""
        ...

    def write(self, block_ids: Sequence[int], source: Bytes) -> None:
        """Copies `source` [blocks, block bytes] over blocks that nothing else uses meanwhile."""
        ...


class HostPool:
    """A pool in host memory: for each layer its bytes [blocks, layer bytes], shared, not copied."""

    def __init__(self, layers: Sequence[Bytes]) -> None:
        self._layers = tuple(layers)

    @property
    def block_bytes(self) -> int:
        return sum(layer.shape[1] for layer in self._layers)

    def read(self, block_ids: Sequence[int], target: Bytes) -> None:
        for rows, blocks in _runs(block_ids):
            for layer, part in self._parts(target):
                part[rows] = layer[blocks]

    def write(self, block_ids: Sequence[int], source: Bytes) -> None:
        for rows, blocks in _runs(block_ids):
            for layer, part in self._parts(source):
                layer[blocks] = part[rows]

    def _parts(self, data: Bytes) -> Iterator[tuple[Bytes, Bytes]]:
        """Each layer with its part of the blocks in `data`."""
        start = 0
        for layer in self._layers:
            end = start + layer.shape[1]
            yield layer, data[:, start:end]
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
