"""What of a vLLM engine's KV pool has to be known to move its blocks. Imports torch and vLLM."""

import os
from hashlib import blake2b
from pathlib import Path
from typing import Any

import torch
import vllm
from vllm.distributed.parallel_state import get_pp_group, get_tp_group
from vllm.platforms import current_platform
from vllm.v1.attention.backends import cpu_attn

from replicas.kv.connector.block_rows import block_rows
from replicas.kv.connector.device_pool import CudaLane, DevicePool
from replicas.kv.connector.fingerprint import weights_fingerprint
from replicas.kv.connector.pool import BlockPool, HostPool
from replicas.kv.store.namespaces import Namespace
from router.core.errors import ConfigurationError


def this_rank() -> int:
    """Of the engine's ranks, in a worker's process."""
    stage, part = get_pp_group(), get_tp_group()
    return int(stage.rank_in_group * part.world_size + part.rank_in_group)


def pool_of(
    vllm_config: Any, kv_caches: dict[str, torch.Tensor], num_blocks: int, rank: int
) -> BlockPool:
    """A rank's pool: the layers' own memory, in the order of their names.

    Raises `ConfigurationError` where a layer does not lie block by block, as bytes of several
    blocks would then be mixed.
    """
    names = sorted(kv_caches)
    layers = [block_rows(name, kv_caches[name], num_blocks) for name in names]
    backends = vllm_config.compilation_config.static_forward_context
    form = blake2b(f"rank {rank}".encode(), digest_size=32)
    for name in names:
        layer = kv_caches[name]
        backend = backends[name].get_attn_backend().get_name()
        inside = layer.dtype, tuple(layer.shape[1:]), layer.stride()[1:]
        form.update(f"\0{name} {backend} {layer.device.type} {inside}".encode())
    device = kv_caches[names[0]].device
    if device.type == "cpu":
        return HostPool([layer.numpy() for layer in layers], form.digest())
    return DevicePool(layers, CudaLane(device), form.digest())


def namespace_of(vllm_config: Any, kv_cache_config: Any) -> bytes:
    """The digest for what this engine computes; the same in all processes of the engine.

    Raises `ConfigurationError` where a block is more than one piece of full attention, or where
    ranks share a block's tokens out.
    """
    if len(kv_cache_config.kv_cache_groups) != 1:
        raise ConfigurationError("kv_store", "models with several kinds of KV cache are not stored")
    model, parallel = vllm_config.model_config, vllm_config.parallel_config
    if parallel.decode_context_parallel_size > 1 or parallel.prefill_context_parallel_size > 1:
        raise ConfigurationError("kv_store", "engines with parallel contexts are not stored")
    cache = vllm_config.cache_config
    return Namespace(
        model=str(model.served_model_name),
        weights=weights_fingerprint(Path(model.model)),
        adapters="none",
        engine_version=vllm.__version__,
        dtype=str(model.dtype),
        kv_dtype=str(cache.cache_dtype),
        quantisation=str(model.quantization),
        block_size=cache.block_size,
        layers=model.get_num_layers(parallel),
        kv_heads=model.get_num_kv_heads(parallel),
        head_size=model.get_head_size(),
        layout=str(kv_cache_config.kv_cache_layout),
        device=_device_kind(vllm_config),
        tensor_parallel_size=parallel.tensor_parallel_size,
        pipeline_parallel_size=parallel.pipeline_parallel_size,
        rank=0,
        kv_group=0,
        hash_algorithm=str(cache.prefix_caching_hash_algo),
        hash_seed=os.environ.get("PYTHONHASHSEED", ""),
    ).digest


def _device_kind(vllm_config: Any) -> str:
    """On a CPU the instruction set, which orders the bytes within a block."""
    model, cache = vllm_config.model_config, vllm_config.cache_config
    if current_platform.is_cpu():
        isa = cpu_attn._get_attn_isa(model.dtype, cache.block_size, model.get_head_size())
        return f"cpu:{isa}"
    return f"{current_platform.device_type}:{current_platform.get_device_name()}"
