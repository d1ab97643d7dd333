"""Real engines whose KV goes to a store and comes back: a cluster, an engine and a store a file."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import pytest
import ray
from ray.actor import ActorHandle

from replicas.engines.vllm.environment import prepare_environment
from replicas.engines.vllm.tiny_model import ensure_tiny_model
from replicas.kv.connector.messages import PARAMETER, encode_request
from replicas.kv.store.actor import KVStoreActor
from replicas.kv.store.contents import StoredObject
from replicas.kv.store.objects import ObjectKey
from replicas.kv.store.settings import StoreSettings
from replicas.kv.store.wire import pack_objects, unpack_objects
from router.core.hashing import NO_EXTRA_KEYS, hash_blocks, salt, unpack_hashes
from router.core.transfer import Keeping, StoredRun, TransferRequest

BLOCK_SIZE, OBJECT_BLOCKS = 32, 4
OBJECT_TOKENS = BLOCK_SIZE * OBJECT_BLOCKS
NEW_TOKENS = 12
BUDGET_BYTES = 64 * 2**20
ROOT = Path(__file__).parents[2]

Tokens = list[int]
Object = np.ndarray[Any, np.dtype[np.uint8]]


class Store:
    """The node's store, and ways to look into it and to damage what lies there."""

    def __init__(self) -> None:
        self.name = f"kv-store-{uuid4().hex}"
        self.actor = self._started()

    def _started(self) -> ActorHandle:
        node_id = ray.get_runtime_context().get_node_id()
        settings = StoreSettings("kv", node_id, BUDGET_BYTES, linger_s=3600.0)
        kind = ray.remote(KVStoreActor)
        options = {"name": self.name, "lifetime": "detached", "num_cpus": 0, "get_if_exists": True}
        return kind.options(**options, namespace="kv").remote(settings.packed())

    def objects(self) -> list[StoredObject]:
        return unpack_objects(ray.get(self.actor.listing.remote(), timeout=30))

    def runs(self, tokens: Tokens, cache_salt: str | None = None) -> tuple[StoredRun, ...]:
        """What a directory would know of a prompt: by the router's hashes, in order."""
        keys = NO_EXTRA_KEYS if cache_salt is None else salt(cache_salt)
        chain = hash_blocks(np.array(tokens, "<u4").tobytes(), BLOCK_SIZE, keys).tolist()
        known = [item for item in self.objects() if not item.rank]
        by_last = {unpack_hashes(item.hashes).tolist()[-1]: item for item in known}
        ends = range(OBJECT_BLOCKS, len(chain) + 1, OBJECT_BLOCKS)
        found = [(end, by_last[chain[end - 1]]) for end in ends if chain[end - 1] in by_last]
        return tuple(
            StoredRun(end - OBJECT_BLOCKS, OBJECT_BLOCKS, self.name, item.key)
            for end, item in found
        )

    def look(self, key: bytes) -> Object:
        (refs,) = ray.get(self.actor.locate.remote([key]), timeout=30)
        data: Object = ray.get(refs[0], timeout=30)
        return data

    def change(self, key: bytes, change: Callable[[Object], Object]) -> None:
        """Puts changed bytes in the place of an object's, behind the back of all checks."""
        (item,) = [item for item in self.objects() if item.key == key]
        data = change(self.look(key).copy())
        ray.get(self.actor.discard.remote([key]), timeout=30)
        head = replace(item, size_bytes=data.nbytes)
        ray.get(self.actor.put.remote(pack_objects([head]), data), timeout=30)

    def restart(self) -> None:
        ray.kill(self.actor, no_restart=True)
        self.actor = self._started()


async def greedy(
    llm: Any, prompt: Tokens | dict[str, Any], parameters: dict[str, object], new_tokens: int
) -> tuple[Tokens, int]:
    """The text, and how many of the prompt's tokens were reported as cached."""
    from vllm import SamplingParams

    sampling = SamplingParams(
        max_tokens=new_tokens,
        temperature=0,
        ignore_eos=True,
        extra_args={"kv_transfer_params": parameters},
    )
    asked = {"prompt_token_ids": prompt} if isinstance(prompt, list) else prompt
    async for output in llm.generate(asked, sampling, request_id=uuid4().hex):
        last = output
    assert last.outputs[0].finish_reason == "length"
    return list(last.outputs[0].token_ids), int(last.num_cached_tokens or 0)


async def forget(llm: Any) -> None:
    """What the engine itself holds; a store keeps its own."""
    for _ in range(400):
        if await llm.reset_prefix_cache():
            return
        await asyncio.sleep(0.03)
    raise AssertionError("the engine was not idle")


def engine_with(
    address: dict[str, str],
    object_blocks: int,
    *,
    connector: str = "WarmpathConnector",
    module: str = "replicas.kv.connector.vllm_connector",
    **arguments: object,
) -> Any:
    """An engine of vLLM's with the tiny model and a connector to the store at `address`."""
    prepare_environment()
    from vllm.config import KVTransferConfig
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    transfer = KVTransferConfig(
        kv_connector=connector,
        kv_connector_module_path=module,
        kv_role="kv_both",
        kv_load_failure_policy="recompute",
        kv_connector_extra_config={
            "address": address,
            "object_blocks": object_blocks,
            "held_bytes": 64 * 2**20,
            "load_timeout_s": 5.0,
        },
    )
    chosen: dict[str, Any] = {
        "max_model_len": 2048,
        "kv_cache_memory_bytes": 128 * 2**20,
        **arguments,
    }
    return AsyncLLM.from_engine_args(
        AsyncEngineArgs(
            model=str(ensure_tiny_model()),
            dtype="float32",
            enforce_eager=True,
            block_size=BLOCK_SIZE,
            enable_prefix_caching=True,
            prefix_caching_hash_algo="sha256_cbor",
            kv_transfer_config=transfer,
            **chosen,
        )
    )


class Engine:
    def __init__(self, llm: Any, store: Store) -> None:
        self.store = store
        self._llm = llm

    async def text(
        self, tokens: Tokens, transfer: TransferRequest, cache_salt: str | None = None
    ) -> tuple[Tokens, int]:
        prompt: dict[str, Any] = {"prompt_token_ids": tokens, "cache_salt": cache_salt}
        return await greedy(self._llm, prompt, {PARAMETER: encode_request(transfer)}, NEW_TOKENS)

    async def forget(self) -> None:
        await forget(self._llm)

    async def save(self, tokens: Tokens, cache_salt: str | None = None) -> Tokens:
        """Computes without the store's help and saves; the text is what all others must equal."""
        await self.forget()
        wanted = len(tokens) // OBJECT_TOKENS
        transfer = TransferRequest((), Keeping.REUSE, len(tokens) // BLOCK_SIZE)
        text, cached = await self.text(tokens, transfer, cache_salt)
        assert cached == 0
        for _ in range(200):
            if len(self.store.runs(tokens, cache_salt)) >= wanted:
                return text
            await asyncio.sleep(0.05)
        raise AssertionError("what was to be saved did not arrive")

    async def stored(self, tokens: Tokens, ranks: int) -> None:
        """Waits until each rank's part of all that is stored of a prompt is there."""
        keys = [ObjectKey.unpack(run.key) for run in self.store.runs(tokens)]
        parts = {key.of_rank(rank).pack() for key in keys for rank in range(ranks)}
        for _ in range(200):
            if parts <= {item.key for item in self.store.objects()}:
                return
            await asyncio.sleep(0.05)
        raise AssertionError("not all ranks saved their parts")

    async def loaded(self, tokens: Tokens, runs: tuple[StoredRun, ...]) -> tuple[Tokens, int]:
        await self.forget()
        return await self.text(tokens, TransferRequest(runs))


@contextmanager
def own_cluster(folder: Path) -> Iterator[str]:
    """The address of a cluster with nothing in it, this process's own where that has one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_MODE", "disabled")
        patch.setenv("PYTHONPATH", str(ROOT))
        is_own = not ray.is_initialized()
        if is_own:
            ray.init(
                address="local",
                num_cpus=2,
                object_store_memory=256 * 2**20,
                include_dashboard=False,
                log_to_driver=False,
                _temp_dir=str(folder),
                _node_ip_address="127.0.0.1",
            )
        yield ray.get_runtime_context().gcs_address
        if is_own:
            ray.shutdown()


@asynccontextmanager
async def stored_engine(cluster: str, **arguments: object) -> AsyncIterator[Engine]:
    store = Store()
    address = {"cluster": cluster, "namespace": "kv", "store_id": store.name, "model": "m"}
    llm = engine_with(address, OBJECT_BLOCKS, **arguments)  # type: ignore[arg-type]
    try:
        yield Engine(llm, store)
    finally:
        llm.shutdown()
        ray.kill(store.actor, no_restart=True)


def prompt(length: int, seed: int) -> Tokens:
    draw = random.Random(seed)
    return [draw.randrange(3, 1000) for _ in range(length)]
