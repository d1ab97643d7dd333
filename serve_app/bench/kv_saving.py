"""What saving KV costs the requests whose KV is saved: a real engine, with and without."""

import json
import statistics
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from replicas.kv.connector.messages import PARAMETER, encode_request
from replicas.kv.connector.settings import ConnectorSettings
from router.core.transfer import Keeping, TransferRequest

BLOCK_SIZE, OBJECT_BLOCKS = 32, 4
VOCABULARY = 8192

CONFIG: dict[str, object] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": VOCABULARY,
    "hidden_size": 768,
    "intermediate_size": 2048,
    "num_hidden_layers": 16,
    "num_attention_heads": 12,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
    "bos_token_id": 0,
    "eos_token_id": 1,
}
"""A Llama of 113 M parameters; the engine makes up its weights, from a seed."""


@dataclass(frozen=True, slots=True)
class Load:
    """Prompts of `prompt_tokens` tokens, one at a time, `new_tokens` answered to each."""

    prompt_tokens: int
    new_tokens: int


@dataclass(frozen=True, slots=True)
class Times:
    ttft_s: float
    tpot_s: float


@dataclass(frozen=True, slots=True)
class Pair:
    """Two prompts of one length after each other, the KV of one of them saved."""

    plain: Times
    saved: Times


class SavingEngine:
    def __init__(self, llm: Any, random: Random) -> None:
        self._llm = llm
        self._random = random
        self._sent = 0

    async def pairs(self, load: Load, count: int) -> list[Pair]:
        """Which of the two goes first alternates."""
        found = []
        for number in range(count):
            keepings = [Keeping.NOTHING, Keeping.REUSE][:: 1 if number % 2 else -1]
            times = {keeping: await self._times(load, keeping) for keeping in keepings}
            found.append(Pair(times[Keeping.NOTHING], times[Keeping.REUSE]))
        return found

    async def _times(self, load: Load, keeping: Keeping) -> Times:
        from vllm import SamplingParams

        tokens = [self._random.randrange(2, VOCABULARY) for _ in range(load.prompt_tokens)]
        transfer = TransferRequest((), keeping, reuse_blocks=load.prompt_tokens // BLOCK_SIZE)
        sampling = SamplingParams(
            max_tokens=load.new_tokens,
            temperature=0,
            ignore_eos=True,
            detokenize=False,
            extra_args={"kv_transfer_params": {PARAMETER: encode_request(transfer)}},
        )
        self._sent += 1
        marks = [time.perf_counter()]
        prompt = {"prompt_token_ids": tokens}
        async for _ in self._llm.generate(prompt, sampling, request_id=str(self._sent)):
            marks.append(time.perf_counter())
        ttft_s = marks[1] - marks[0]
        return Times(ttft_s, (marks[-1] - marks[1]) / (load.new_tokens - 1))


@asynccontextmanager
async def saving_engine(folder: Path, connector: ConnectorSettings) -> AsyncIterator[SavingEngine]:
    """vLLM in processes of its own, with our connector; `folder` gets the model's configuration."""
    from replicas.engines.vllm.environment import prepare_environment

    prepare_environment()
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    from replicas.engines.vllm.kv_transfer import transfer_config

    (folder / "config.json").write_text(json.dumps(CONFIG))
    llm = AsyncLLM.from_engine_args(
        AsyncEngineArgs(
            model=str(folder),
            load_format="dummy",
            skip_tokenizer_init=True,
            dtype="float32",
            enforce_eager=True,
            max_model_len=4096,
            block_size=BLOCK_SIZE,
            kv_cache_memory_bytes=256 * 2**20,
            enable_prefix_caching=True,
            prefix_caching_hash_algo="sha256_cbor",
            kv_transfer_config=transfer_config(connector),
        )
    )
    try:
        yield SavingEngine(llm, Random(1))
    finally:
        llm.shutdown()


def ratios(pairs: list[Pair]) -> tuple[float, float]:
    """Of the medians, saved by plain: time to the first token, time per token after it."""
    plain, saved = [pair.plain for pair in pairs], [pair.saved for pair in pairs]
    middle = statistics.median
    return (
        middle(one.ttft_s for one in saved) / middle(one.ttft_s for one in plain),
        middle(one.tpot_s for one in saved) / middle(one.tpot_s for one in plain),
    )
