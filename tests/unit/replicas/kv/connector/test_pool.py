"""Blocks lie in a payload as they lie in the layers, whatever places they have in the pool.

A device is stood in for by host memory and a queue whose work is done as late as it may be.
"""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from replicas.kv.connector.buffers import Buffers
from replicas.kv.connector.device_pool import CudaLane, DevicePool
from replicas.kv.connector.pool import PAST, BlockPool, HostPool, Moment

IDS = [[3], [0, 1, 2, 3], [5, 4, 3], [0, 1, 5, 6, 2], [7, 0, 1]]


def layers() -> list[np.ndarray]:
    """Of 8 blocks; no two bytes of a block are the same in two layers."""
    return [
        (np.arange(8 * width).reshape(8, width) + 100 * number).astype(np.uint8)
        for number, width in enumerate((3, 5))
    ]


class LateWork:
    """Begun where somebody waits for it."""

    def __init__(self, work: Callable[[], None], after: Moment) -> None:
        self._work = work
        self._after = after

    def synchronize(self) -> None:
        self._after.synchronize()
        self._work()
        self._work = lambda: None


class LateLane:
    """The engine's own work is done at once."""

    def host_bytes(self, size_bytes: int) -> torch.Tensor:
        return torch.empty(size_bytes, dtype=torch.uint8)

    def moment(self) -> Moment:
        return PAST

    def beside(self, work: Callable[[], None], after: Moment) -> Moment:
        return LateWork(work, after)


def host_pool(of: list[np.ndarray]) -> BlockPool:
    return HostPool(of)


def device_pool(of: list[np.ndarray]) -> BlockPool:
    return DevicePool([torch.from_numpy(layer) for layer in of], LateLane(), b"f" * 32)


Make = Callable[[list[np.ndarray]], BlockPool]
pools = pytest.mark.parametrize("make", [host_pool, device_pool])


def payload_of(pool: BlockPool, ids: list[int]) -> np.ndarray:
    target = pool.new_buffer(len(ids) * pool.block_bytes)
    pool.read(ids, target).synchronize()
    return target


@pools
@pytest.mark.parametrize("ids", IDS, ids=str)
def test_blocks_are_read_layer_after_layer(make: Make, ids: list[int]) -> None:
    found = payload_of(make(layers()), ids)
    assert found.tolist() == [byte for layer in layers() for b in ids for byte in layer[b]]


@pools
@pytest.mark.parametrize("skipped", [0, 1, 2])
@pytest.mark.parametrize("ids", IDS, ids=str)
def test_what_was_read_is_written_to_its_places_and_nowhere_else(
    make: Make, ids: list[int], skipped: int
) -> None:
    source = payload_of(make(layers()), ids)
    empty = [np.full_like(layer, 255) for layer in layers()]
    seen: list[int] = []
    make(empty).write(ids[skipped:], source, skipped, lambda part: seen.extend(part.flat), PAST)
    assert seen == source.tolist()
    for layer, full in zip(empty, layers(), strict=True):
        written = set(ids[skipped:])
        expected = [full[b].tolist() if b in written else [255] * full.shape[1] for b in range(8)]
        assert layer.tolist() == expected


@pools
def test_blocks_may_be_used_anew_before_their_copy_is_filled(make: Make) -> None:
    content = layers()
    pool = make(content)
    target = pool.new_buffer(2 * pool.block_bytes)
    filled = pool.read([1, 2], target)
    for layer in content:
        layer[:] = 255
    filled.synchronize()
    assert target.tolist() == [byte for layer in layers() for b in (1, 2) for byte in layer[b]]


@pools
def test_nothing_is_written_before_its_moment(make: Make) -> None:
    content = layers()
    pool, source = make(content), payload_of(make(layers()), [4])

    def engine_work() -> None:
        for layer in content:
            layer[4] = 255

    after: Moment = PAST if make is host_pool else LateWork(engine_work, PAST)
    pool.write([4], source, 0, lambda part: None, after)
    assert [layer[4].tolist() for layer in content] == [layer[4].tolist() for layer in layers()]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("ids", IDS, ids=str)
def test_a_cuda_device_reads_and_writes_as_host_memory_does(ids: list[int]) -> None:
    device = torch.device("cuda", 0)
    pool = DevicePool(
        [torch.from_numpy(layer).to(device) for layer in layers()], CudaLane(device), b"f" * 32
    )
    found = payload_of(pool, ids)
    assert found.tolist() == payload_of(host_pool(layers()), ids).tolist()
    empty = [torch.full((8, width), 255, dtype=torch.uint8, device=device) for width in (3, 5)]
    other = DevicePool(empty, CudaLane(device), b"f" * 32)
    other.write(ids, found, 0, lambda part: None, other.moment())
    assert payload_of(other, ids).tolist() == found.tolist()


def test_a_buffer_that_came_back_is_used_again() -> None:
    buffers = Buffers(lambda size: np.empty(size, np.uint8), 100)
    one = buffers.take(40)
    assert buffers.take(40) is not one
    buffers.give(one)
    assert buffers.take(30) is not one
    assert buffers.take(40) is one


def test_what_is_kept_for_later_is_bounded() -> None:
    buffers = Buffers(lambda size: np.empty(size, np.uint8), 100)
    taken = [buffers.take(40) for _ in range(4)]
    for buffer in taken:
        buffers.give(buffer)
    kept = [buffers.take(40) for _ in range(4)]
    assert [any(buffer is other for other in taken) for buffer in kept] == [
        True,
        True,
        False,
        False,
    ]
