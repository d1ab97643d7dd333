"""Of every order in which an engine may lay out its KV, the bytes of each block, or a refusal."""

import pytest
import torch

from replicas.kv.connector.block_rows import block_rows
from router.core.errors import ConfigurationError

LAYERS, BLOCKS, HEADS, TOKENS, CONTENT = 2, 5, 3, 4, 6
SHAPE = (LAYERS, BLOCKS, HEADS, TOKENS, CONTENT)

BLOCK_BY_BLOCK = [(0, 1, 2, 3, 4), (0, 1, 3, 2, 4), (1, 0, 2, 3, 4), (1, 0, 3, 2, 4)]
HEAD_BY_HEAD = [(0, 2, 1, 3, 4), (1, 2, 0, 3, 4)]


def laid_out(order: tuple[int, ...]) -> list[torch.Tensor]:
    """Each layer [blocks, heads, tokens, content] of a cache whose memory is in that order."""
    memory = torch.arange(torch.Size(SHAPE).numel(), dtype=torch.int16)
    memory = memory.reshape([SHAPE[axis] for axis in order])
    return list(memory.permute([order.index(axis) for axis in range(len(order))]))


@pytest.mark.parametrize("order", BLOCK_BY_BLOCK, ids=str)
def test_a_row_has_all_of_its_block_and_nothing_else(order: tuple[int, ...]) -> None:
    for layer in laid_out(order):
        rows = block_rows("layer", layer, BLOCKS)
        assert rows.shape == (BLOCKS, HEADS * TOKENS * CONTENT * 2)
        for block in range(BLOCKS):
            numbers = sorted(rows[block].contiguous().view(torch.int16).tolist())
            assert numbers == sorted(layer[block].flatten().tolist())


@pytest.mark.parametrize("order", BLOCK_BY_BLOCK, ids=str)
def test_what_is_written_to_a_row_is_in_the_layer(order: tuple[int, ...]) -> None:
    one, other = laid_out(order)
    before = other.clone()
    rows = block_rows("layer", one, BLOCKS)
    rows[3] = rows[1]
    assert torch.equal(one[3], one[1])
    assert torch.equal(other, before)


@pytest.mark.parametrize("order", HEAD_BY_HEAD, ids=str)
def test_blocks_in_pieces_are_refused(order: tuple[int, ...]) -> None:
    with pytest.raises(ConfigurationError, match="block by block"):
        block_rows("layer", laid_out(order)[0], BLOCKS)


def test_another_number_of_blocks_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="block by block"):
        block_rows("layer", laid_out(BLOCK_BY_BLOCK[0])[0], BLOCKS + 1)
