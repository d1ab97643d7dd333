"""The tiny model: a seeded Llama with a byte-level BPE tokenizer, made in seconds, never shipped.

Its weights are wide (`initializer_range` 0.08) and float32, so that greedy text depends on the
whole prompt: a wrong or missing KV block changes the answer. It says nothing sensible.
"""

import hashlib
import json
import os
import random
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from fcntl import LOCK_EX, flock
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from replicas.engines.vllm.tiny_text import CHAT_TEMPLATE, training_lines

BOS, EOS, TURN_START, TURN_END = "<|begin|>", "<|end|>", "<|im_start|>", "<|im_end|>"
TOOL_TAGS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")

SEED = 20_24
VOCABULARY = 2048
INITIALIZER_RANGE = 0.08

CONFIG: dict[str, object] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": VOCABULARY,
    "hidden_size": 256,
    "intermediate_size": 688,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 16384,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "attention_bias": False,
    "mlp_bias": False,
    "initializer_range": INITIALIZER_RANGE,
    "torch_dtype": "float32",
    "bos_token_id": 0,
    "eos_token_id": 1,
}


def ensure_tiny_model(cache_dir: Path | None = None) -> Path:
    """The model's folder, made first where it is missing. Safe with many processes at once.

    `cache_dir` defaults to `$WARMPATH_CACHE`, else `~/.cache/warmpath`. The folder's name carries
    a digest of the recipe, so another recipe never meets old files.
    """
    root = cache_dir or Path(os.environ.get("WARMPATH_CACHE") or Path.home() / ".cache/warmpath")
    folder = root / f"tiny-{_recipe_digest()}"
    if folder.exists():
        return folder
    root.mkdir(parents=True, exist_ok=True)
    with _lock(root / "tiny.lock"):
        if not folder.exists():
            _make(folder)
    return folder


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Held by one process; the kernel frees it when that process dies."""
    with path.open("w") as file:
        flock(file, LOCK_EX)
        yield


def _make(folder: Path) -> None:
    """The rename is atomic: a folder of that name is always whole."""
    draft = Path(tempfile.mkdtemp(prefix="tiny-draft-", dir=folder.parent))
    try:
        _write_tokenizer(draft)
        _write_json(draft / "config.json", CONFIG)
        _write_json(draft / "generation_config.json", {"bos_token_id": 0, "eos_token_id": [1, 3]})
        save_file(_weights(), draft / "model.safetensors", metadata={"format": "pt"})
        draft.chmod(0o755)
        draft.rename(folder)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _recipe_digest() -> str:
    """Twelve hex digits over this module, the text it trains on, and the shape of the model."""
    parts = [json.dumps(CONFIG, sort_keys=True), CHAT_TEMPLATE, str(SEED)]
    parts += [Path(__file__).read_text(), *training_lines(random.Random(SEED))]
    return hashlib.sha256("\x00".join(parts).encode()).hexdigest()[:12]


def _weights() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(SEED)
    tensors = {
        name: rng.normal(0.0, INITIALIZER_RANGE, shape).astype(np.float32)
        for name, shape in _matrix_shapes()
    }
    norms = [f"model.layers.{layer}.{norm}.weight" for layer in range(4) for norm in _LAYER_NORMS]
    return tensors | {name: np.ones(256, np.float32) for name in [*norms, "model.norm.weight"]}


_LAYER_NORMS = ("input_layernorm", "post_attention_layernorm")

_LAYER_MATRICES: dict[str, tuple[int, int]] = {
    "self_attn.q_proj": (256, 256),
    "self_attn.k_proj": (128, 256),
    "self_attn.v_proj": (128, 256),
    "self_attn.o_proj": (256, 256),
    "mlp.gate_proj": (688, 256),
    "mlp.up_proj": (688, 256),
    "mlp.down_proj": (256, 688),
}


def _matrix_shapes() -> Iterator[tuple[str, tuple[int, int]]]:
    yield "model.embed_tokens.weight", (VOCABULARY, 256)
    yield "lm_head.weight", (VOCABULARY, 256)
    for layer in range(4):
        for name, shape in _LAYER_MATRICES.items():
            yield f"model.layers.{layer}.{name}.weight", shape


def _write_tokenizer(folder: Path) -> None:
    tokenizer = _train_tokenizer()
    tokenizer.save(str(folder / "tokenizer.json"))
    _write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": BOS,
            "eos_token": EOS,
            "pad_token": EOS,
            "model_max_length": CONFIG["max_position_embeddings"],
            "clean_up_tokenization_spaces": False,
            "chat_template": CHAT_TEMPLATE,
        },
    )


def _train_tokenizer() -> Tokenizer:
    """Ids: 0 begin, 1 end, 2 and 3 the turn marks, then bytes and merges, last the tool tags."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - len(TOOL_TAGS),
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=[BOS, EOS, TURN_START, TURN_END],
    )
    tokenizer.train_from_iterator(training_lines(random.Random(SEED)), trainer)
    # Special tokens would be dropped from decoded text, and tool parsers look for these.
    tokenizer.add_tokens([AddedToken(tag, special=False, normalized=False) for tag in TOOL_TAGS])
    assert tokenizer.get_vocab_size() == VOCABULARY
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", pair=f"{BOS} $A {BOS} $B", special_tokens=[(BOS, 0)]
    )
    return tokenizer


def _write_json(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, indent=1, sort_keys=True))
