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

from replicas.kv.store.objects import FORMLESS

Bytes = NDArray[np.uint8]
Look = Callable[[Bytes], None]


class Moment(Protocol):
    """A point in the order of the work on a device, which may lie ahead."""

    def synchronize(self) -> None:
        """Waits for it; may raise what the work before it failed with."""
        ...


class BlockPool(Protocol):
    """Where a rank's KV lies. `block_bytes` are those of one block in all layers of the rank;
    `form` is a digest of how they are laid out there, the same for all pools of such a rank."""

    @property
    def block_bytes(self) -> int: ...

    @property
    def form(self) -> bytes: ...

    def new_buffer(self, size_bytes: int) -> Bytes:
        """Host memory that `read` fills fast."""
        ...

    def moment(self) -> Moment:
        """When all that the engine has begun by now will be done."""
        ...

    def read(self, block_ids: Sequence[int], target: Bytes) -> Moment:
        """Copies blocks, as they are when the engine's work till now is done, into `target`, a
        payload of just these in a buffer of this pool; it is filled at the returned moment. The
        engine may use the blocks anew at once."""
        ...

    def write(
        self, block_ids: Sequence[int], source: Bytes, skipped: int, look: Look, after: Moment
    ) -> None:
        """Copies the blocks of the payload `source` from its `skipped`-th on over blocks that
        nothing else uses from `after` on. `look` is given all of `source`, part after part, each
        just before it is copied. Nothing is written any more once this has returned or raised."""
        ...


class Past:
    """A moment that is over."""

    def synchronize(self) -> None:
        pass


PAST = Past()


class HostPool:
    """A pool in host memory: for each layer its bytes [blocks, layer bytes], shared, not copied."""

    def __init__(self, layers: Sequence[Bytes], form: bytes = FORMLESS) -> None:
        self._layers = tuple(layers)
        self._widths = tuple(layer.shape[1] for layer in self._layers)
        self._form = form

    @property
    def block_bytes(self) -> int:
        return sum(self._widths)

    @property
    def form(self) -> bytes:
        return self._form

    def new_buffer(self, size_bytes: int) -> Bytes:
        return np.empty(size_bytes, np.uint8)

    def moment(self) -> Moment:
        return PAST

    def read(self, block_ids: Sequence[int], target: Bytes) -> Moment:
        runs = list(_runs(block_ids))
        for layer, part in zip(self._layers, parts(target, self._widths), strict=True):
            for rows, blocks in runs:
                part[rows] = layer[blocks]
        return PAST

    def write(
        self, block_ids: Sequence[int], source: Bytes, skipped: int, look: Look, after: Moment
    ) -> None:
        """What was looked at is still in the processor's cache when it is copied."""
        runs = list(_runs(block_ids))
        for layer, part in zip(self._layers, parts(source, self._widths), strict=True):
            look(part)
            for rows, blocks in runs:
                layer[blocks] = part[skipped:][rows]


def parts(data: Bytes, widths: Sequence[int]) -> Iterator[Bytes]:
    """Each layer's part [blocks, layer bytes] of a payload."""
    blocks = len(data) // sum(widths)
    start = 0
    for width in widths:
        end = start + blocks * width
        yield data[start:end].reshape(blocks, width)
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
