"""A KV pool in a device's own memory, copied by way of host memory that the device reads by itself.

What is saved is gathered on the engine's own queue, so that the engine may use the blocks anew at
once, and leaves the device beside it. What is loaded comes in beside the engine's work.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import torch

from replicas.kv.connector.buffers import Buffers
from replicas.kv.connector.pool import Bytes, Look, Moment, parts

STAGING_BYTES = 64 * 2**20
"""Host memory that is kept for the next loads."""


class Lane(Protocol):
    """Queues of work on one device: the engine's, and others beside it."""

    def host_bytes(self, size_bytes: int) -> torch.Tensor:
        """Host memory that the device copies from and to without waiting for the host."""
        ...

    def moment(self) -> Moment:
        """When what is on the engine's queue by now will be done."""
        ...

    def beside(self, work: Callable[[], None], after: Moment) -> Moment:
        """Puts what `work` begins on a queue of its own, behind `after`, and returns its end. Where
        `work` raises, what it had begun is done first."""
        ...


class CudaLane:
    """`after` must be a moment of this lane; from any thread, as `moment` is of the caller's."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def host_bytes(self, size_bytes: int) -> torch.Tensor:
        return torch.empty(size_bytes, dtype=torch.uint8, pin_memory=True)

    def moment(self) -> Moment:
        event: Moment = torch.cuda.current_stream(self._device).record_event()
        return event

    def beside(self, work: Callable[[], None], after: Moment) -> Moment:
        stream = torch.cuda.Stream(self._device)
        assert isinstance(after, torch.cuda.Event)
        with torch.cuda.stream(stream):
            stream.wait_event(after)
            try:
                work()
            except BaseException:
                stream.synchronize()
                raise
            end: Moment = stream.record_event()
            return end


class DevicePool:
    """For each layer its bytes [blocks, layer bytes] on the device, shared, not copied."""

    def __init__(self, layers: Sequence[torch.Tensor], lane: Lane, form: bytes) -> None:
        self._layers = tuple(layers)
        self._widths = tuple(layer.shape[1] for layer in self._layers)
        self._lane = lane
        self._form = form
        self._staging = Buffers(self.new_buffer, STAGING_BYTES)

    @property
    def block_bytes(self) -> int:
        return sum(self._widths)

    @property
    def form(self) -> bytes:
        return self._form

    def new_buffer(self, size_bytes: int) -> Bytes:
        buffer: Bytes = self._lane.host_bytes(size_bytes).numpy()
        return buffer

    def moment(self) -> Moment:
        return self._lane.moment()

    def read(self, block_ids: Sequence[int], target: Bytes) -> Moment:
        ids = self._places(block_ids)
        gathered = [layer.index_select(0, ids) for layer in self._layers]

        def leave() -> None:
            for layer, part in zip(gathered, parts(target, self._widths), strict=True):
                torch.from_numpy(part).copy_(layer, non_blocking=True)

        return _Leaving(self._lane.beside(leave, self._lane.moment()), gathered)

    def write(
        self, block_ids: Sequence[int], source: Bytes, skipped: int, look: Look, after: Moment
    ) -> None:
        staged = self._staging.take(source.nbytes)
        end = skipped + len(block_ids)

        def come() -> None:
            ids = self._places(block_ids)
            halves = parts(source, self._widths), parts(staged, self._widths)
            for layer, part, host in zip(self._layers, *halves, strict=True):
                look(part)
                np.copyto(host, part)
                rows = torch.from_numpy(host[skipped:end]).to(layer.device, non_blocking=True)
                layer.index_copy_(0, ids, rows)

        self._lane.beside(come, after).synchronize()
        self._staging.give(staged)

    def _places(self, block_ids: Sequence[int]) -> torch.Tensor:
        return torch.tensor(block_ids, dtype=torch.int64, device=self._layers[0].device)


class _Leaving:
    """Keeps what is on its way out until it has left: its memory would be given to others."""

    def __init__(self, moment: Moment, gathered: list[torch.Tensor]) -> None:
        self._moment = moment
        self._gathered = gathered

    def synchronize(self) -> None:
        self._moment.synchronize()
        self._gathered.clear()
