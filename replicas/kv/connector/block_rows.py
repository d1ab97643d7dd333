"""The KV tensor of a layer as the bytes of its blocks."""

import torch

from router.core.errors import ConfigurationError


def block_rows(name: str, layer: torch.Tensor, num_blocks: int) -> torch.Tensor:
    """The bytes of a layer [blocks, heads, tokens, content], as [blocks, bytes] in their order in
    memory; shared, not copied. Raises `ConfigurationError`."""
    inner = zip(layer.stride()[1:], layer.shape[1:], strict=True)
    size = 1
    for stride, length in sorted(pair for pair in inner if pair[1] > 1):
        size *= length if stride == size else 0
    if layer.shape[0] != num_blocks or not size:
        raise ConfigurationError("kv_store", f"the KV of layer {name} does not lie block by block")
    width = layer.element_size()
    whole = torch.empty(0, dtype=torch.uint8, device=layer.device)
    whole.set_(layer.untyped_storage())
    shape, strides = (num_blocks, size * width), (layer.stride(0) * width, 1)
    return whole.as_strided(shape, strides, layer.storage_offset() * width)
