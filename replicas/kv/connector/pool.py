"""Whole blocks of an engine's KV pool in host memory, as bytes.

A block is copied as it lies, layer after layer; what is inside is the attention kernel's own, and
only the same kind of engine (one namespace) can read it.
"""

from collections.abc import Sequence
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
        ids, start = list(block_ids), 0
        for layer in self._layers:
            end = start + layer.shape[1]
            target[:, start:end] = layer[ids]
            start = end

    def write(self, block_ids: Sequence[int], source: Bytes) -> None:
        ids, start = list(block_ids), 0
        for layer in self._layers:
            end = start + layer.shape[1]
            layer[ids] = source[:, start:end]
            start = end
