"""Blocks lie in a payload as they lie in the layers, whatever places they have in the pool."""

import numpy as np
import pytest

from replicas.kv.connector.buffers import Buffers
from replicas.kv.connector.pool import HostPool

IDS = [[3], [0, 1, 2, 3], [5, 4, 3], [0, 1, 5, 6, 2], [7, 0, 1]]


def layers() -> list[np.ndarray]:
    """Of 8 blocks; no two bytes of a block are the same in two layers."""
    return [
        (np.arange(8 * width).reshape(8, width) + 100 * number).astype(np.uint8)
        for number, width in enumerate((3, 5))
    ]


@pytest.mark.parametrize("ids", IDS, ids=str)
def test_blocks_are_read_layer_after_layer(ids: list[int]) -> None:
    pool = HostPool(layers())
    target = np.zeros(len(ids) * pool.block_bytes, np.uint8)
    pool.read(ids, target)
    assert target.tolist() == [byte for layer in layers() for b in ids for byte in layer[b]]


@pytest.mark.parametrize("skipped", [0, 1, 2])
@pytest.mark.parametrize("ids", IDS, ids=str)
def test_what_was_read_is_written_to_its_places_and_nowhere_else(
    ids: list[int], skipped: int
) -> None:
    source = np.zeros(len(ids) * 8, np.uint8)
    HostPool(layers()).read(ids, source)
    empty = [np.full_like(layer, 255) for layer in layers()]
    seen: list[int] = []
    HostPool(empty).write(ids[skipped:], source, skipped, lambda part: seen.extend(part.flat))
    assert seen == source.tolist()
    for layer, full in zip(empty, layers(), strict=True):
        written = set(ids[skipped:])
        expected = [full[b].tolist() if b in written else [255] * full.shape[1] for b in range(8)]
        assert layer.tolist() == expected


def test_a_buffer_that_came_back_is_used_again() -> None:
    buffers = Buffers(100)
    one = buffers.take(40)
    assert buffers.take(40) is not one
    buffers.give(one)
    assert buffers.take(30) is not one
    assert buffers.take(40) is one


def test_what_is_kept_for_later_is_bounded() -> None:
    buffers = Buffers(100)
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
