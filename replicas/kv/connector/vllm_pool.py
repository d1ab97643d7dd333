"""What of a vLLM engine's KV pool has to be known to move its blocks. Imports torch and vLLM."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
import vllm
from vllm.v1.attention.backends import cpu_attn

from replicas.kv.connector.fingerprint import weights_fingerprint
from replicas.kv.connector.pool import HostPool
from replicas.kv.store.namespaces import Namespace
from router.core.errors import ConfigurationError


def host_pool(kv_caches: dict[str, Any]) -> HostPool:
    """The pool of an engine on the CPU: the layers' own memory, in the order of their names.

    vLLM has one tensor a layer, whose first dimension is the block; raises `ConfigurationError`
    where that is not so, as bytes of several blocks would then be mixed.
    """
    return HostPool([_layer(name, kv_caches[name]) for name in sorted(kv_caches)])


def _layer(name: str, tensor: torch.Tensor) -> Any:
    if tensor.device.type != "cpu" or not tensor.is_contiguous():
        raise ConfigurationError("kv_store", f"the KV of layer {name} does not lie block by block")
    blocks = tensor.shape[0]
    array: np.ndarray[Any, np.dtype[np.uint8]] = tensor.view(torch.uint8).numpy()
    return array.reshape(blocks, -1)


def namespace_of(vllm_config: Any, kv_cache_config: Any) -> bytes:
    """The digest for what this engine computes; the same in all processes of the engine.

    Raises `ConfigurationError` where a block is more than one piece of full attention, or more
    than one rank's.
    """
    if len(kv_cache_config.kv_cache_groups) != 1:
        raise ConfigurationError("kv_store", "models with several kinds of KV cache are not stored")
    model, parallel = vllm_config.model_config, vllm_config.parallel_config
    if parallel.world_size != 1:
        raise ConfigurationError("kv_store", "engines of several ranks are not stored")
    cache = vllm_config.cache_config
    head_size = model.get_head_size()
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
        head_size=head_size,
        layout=str(kv_cache_config.kv_cache_layout),
        device=f"cpu:{cpu_attn._get_attn_isa(model.dtype, cache.block_size, head_size)}",
        tensor_parallel_size=parallel.tensor_parallel_size,
        pipeline_parallel_size=parallel.pipeline_parallel_size,
        rank=0,
        kv_group=0,
        hash_algorithm=str(cache.prefix_caching_hash_algo),
        hash_seed=os.environ.get("PYTHONHASHSEED", ""),
    ).digest
