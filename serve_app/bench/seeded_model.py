"""A Llama of a chosen size with random weights and the tiny model's tokenizer, for benchmarks."""

import json
import math
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from replicas.engines.vllm.tiny_model import CONFIG, VOCABULARY, ensure_tiny_model

INITIALIZER_RANGE = 0.05
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "generation_config.json")
_NORMS = ("input_layernorm", "post_attention_layernorm")


@dataclass(frozen=True, slots=True)
class Shape:
    """Of a Llama in float32."""

    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_size: int = 64

    @property
    def parameters(self) -> int:
        return sum(math.prod(shape) for _, shape in self.matrices())

    @property
    def kv_bytes_per_token(self) -> int:
        return self.layers * 2 * self.kv_heads * self.head_size * 4

    def matrices(self) -> Iterator[tuple[str, tuple[int, int]]]:
        queries, keys = self.heads * self.head_size, self.kv_heads * self.head_size
        yield "model.embed_tokens", (VOCABULARY, self.hidden)
        yield "lm_head", (VOCABULARY, self.hidden)
        for layer in range(self.layers):
            prefix = f"model.layers.{layer}"
            yield f"{prefix}.self_attn.q_proj", (queries, self.hidden)
            yield f"{prefix}.self_attn.k_proj", (keys, self.hidden)
            yield f"{prefix}.self_attn.v_proj", (keys, self.hidden)
            yield f"{prefix}.self_attn.o_proj", (self.hidden, queries)
            yield f"{prefix}.mlp.gate_proj", (self.intermediate, self.hidden)
            yield f"{prefix}.mlp.up_proj", (self.intermediate, self.hidden)
            yield f"{prefix}.mlp.down_proj", (self.hidden, self.intermediate)


LARGE = Shape(layers=12, hidden=768, intermediate=3072, heads=12, kv_heads=4)
"""107 million parameters."""


def write_model(folder: Path, shape: Shape, seed: int = 7) -> None:
    """Into `folder`, which it makes. A hundred million parameters take about 400 MB and 5 s."""
    folder.mkdir(parents=True)
    tiny = ensure_tiny_model()
    for name in _TOKENIZER_FILES:
        shutil.copy(tiny / name, folder / name)
    (folder / "config.json").write_text(json.dumps(_config(shape)))
    save_file(_weights(shape, seed), folder / "model.safetensors", metadata={"format": "pt"})


def _config(shape: Shape) -> dict[str, object]:
    return CONFIG | {
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_size,
        "initializer_range": INITIALIZER_RANGE,
    }


def _weights(shape: Shape, seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    scale = np.float32(INITIALIZER_RANGE)
    tensors = {
        f"{name}.weight": scale * rng.standard_normal(size, dtype=np.float32)
        for name, size in shape.matrices()
    }
    norms = [
        f"model.layers.{layer}.{norm}.weight" for layer in range(shape.layers) for norm in _NORMS
    ]
    ones = np.ones(shape.hidden, np.float32)
    return tensors | {name: ones.copy() for name in [*norms, "model.norm.weight"]}
