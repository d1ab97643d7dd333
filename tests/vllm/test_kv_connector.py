"""Real engines through a store: the same text as without, whatever happens to the stored bytes."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import pytest
import pytest_asyncio
import ray
from ray.actor import ActorHandle

from replicas.engines.vllm.environment import prepare_environment
from replicas.engines.vllm.tiny_model import ensure_tiny_model
from replicas.kv.connector.messages import PARAMETER, encode_request
from replicas.kv.store.actor import KVStoreActor
from replicas.kv.store.contents import StoredObject
from replicas.kv.store.objects import HEADER_BYTES, ObjectKey, seal
from replicas.kv.store.settings import StoreSettings
from replicas.kv.store.wire import pack_objects, unpack_objects
from router.core.hashing import NO_EXTRA_KEYS, hash_blocks, salt, unpack_hashes
from router.core.transfer import Keeping, StoredRun, TransferRequest

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]

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
        by_last = {unpack_hashes(item.hashes).tolist()[-1]: item for item in self.objects()}
        ends = range(OBJECT_BLOCKS, len(chain) + 1, OBJECT_BLOCKS)
        found = [(end, by_last[chain[end - 1]]) for end in ends if chain[end - 1] in by_last]
        return tuple(
            StoredRun(end - OBJECT_BLOCKS, OBJECT_BLOCKS, self.name, item.key)
            for end, item in found
        )

    def change(self, key: bytes, change: Callable[[Object], Object]) -> None:
        """Puts changed bytes in the place of an object's, behind the back of all checks."""
        (item,) = [item for item in self.objects() if item.key == key]
        (refs,) = ray.get(self.actor.locate.remote([key]), timeout=30)
        data = change(ray.get(refs[0], timeout=30).copy())
        ray.get(self.actor.discard.remote([key]), timeout=30)
        head = replace(item, size_bytes=data.nbytes)
        ray.get(self.actor.put.remote(pack_objects([head]), data), timeout=30)

    def restart(self) -> None:
        ray.kill(self.actor, no_restart=True)
        self.actor = self._started()


class Engine:
    def __init__(self, llm: Any, store: Store) -> None:
        self.store = store
        self._llm = llm

    async def text(
        self, tokens: Tokens, transfer: TransferRequest, cache_salt: str | None = None
    ) -> tuple[Tokens, int]:
        """Greedy tokens, and how many of the prompt's were reported as cached."""
        from vllm import SamplingParams

        prompt: dict[str, Any] = {"prompt_token_ids": tokens, "cache_salt": cache_salt}
        extra = {"kv_transfer_params": {PARAMETER: encode_request(transfer)}}
        sampling = SamplingParams(
            max_tokens=NEW_TOKENS, temperature=0, ignore_eos=True, extra_args=extra
        )
        async for output in self._llm.generate(prompt, sampling, request_id=uuid4().hex):
            last = output
        assert last.outputs[0].finish_reason == "length"
        return list(last.outputs[0].token_ids), int(last.num_cached_tokens or 0)

    async def forget(self) -> None:
        """What the engine itself holds; the store keeps its own."""
        for _ in range(200):
            if await self._llm.reset_prefix_cache():
                return
            await asyncio.sleep(0.05)
        raise AssertionError("the engine was not idle")

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

    async def loaded(self, tokens: Tokens, runs: tuple[StoredRun, ...]) -> tuple[Tokens, int]:
        await self.forget()
        return await self.text(tokens, TransferRequest(runs))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
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
                _temp_dir=str(tmp_path_factory.mktemp("ray")),
                _node_ip_address="127.0.0.1",
            )
        yield ray.get_runtime_context().gcs_address
        if is_own:
            ray.shutdown()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(cluster: str) -> AsyncIterator[Engine]:
    prepare_environment()
    from vllm.config import KVTransferConfig
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    store = Store()
    transfer = KVTransferConfig(
        kv_connector="WarmpathConnector",
        kv_connector_module_path="replicas.kv.connector.vllm_connector",
        kv_role="kv_both",
        kv_load_failure_policy="recompute",
        kv_connector_extra_config={
            "address": {
                "cluster": cluster,
                "namespace": "kv",
                "store_id": store.name,
                "model": "m",
            },
            "object_blocks": OBJECT_BLOCKS,
            "held_bytes": 64 * 2**20,
            "load_timeout_s": 5.0,
        },
    )
    llm = AsyncLLM.from_engine_args(
        AsyncEngineArgs(
            model=str(ensure_tiny_model()),
            dtype="float32",
            enforce_eager=True,
            max_model_len=2048,
            block_size=BLOCK_SIZE,
            kv_cache_memory_bytes=128 * 2**20,
            enable_prefix_caching=True,
            prefix_caching_hash_algo="sha256_cbor",
            kv_transfer_config=transfer,
        )
    )
    yield Engine(llm, store)
    llm.shutdown()
    ray.kill(store.actor, no_restart=True)


def prompt(length: int, seed: int) -> Tokens:
    draw = random.Random(seed)
    return [draw.randrange(3, 1000) for _ in range(length)]


@pytest.mark.parametrize("length", [OBJECT_TOKENS + 1, 3 * OBJECT_TOKENS, 5 * OBJECT_TOKENS + 77])
async def test_text_after_a_load_is_the_text_of_a_cold_run(engine: Engine, length: int) -> None:
    tokens = prompt(length, length)
    expected = await engine.save(tokens)
    text, cached = await engine.loaded(tokens, engine.store.runs(tokens))
    assert text == expected
    assert cached == min(length // OBJECT_TOKENS * OBJECT_TOKENS, (length - 1) // BLOCK_SIZE * 32)


async def test_what_the_engine_has_itself_is_not_loaded(engine: Engine) -> None:
    tokens = prompt(4 * OBJECT_TOKENS + 5, 1)
    expected = await engine.save(tokens)
    runs = engine.store.runs(tokens)
    await engine.forget()
    await engine.text(tokens[: OBJECT_TOKENS + 2 * BLOCK_SIZE + 1], TransferRequest())
    text, cached = await engine.text(tokens, TransferRequest(runs))
    assert (text, cached) == (expected, 4 * OBJECT_TOKENS)


async def test_a_conversation_goes_on_from_what_is_stored(engine: Engine) -> None:
    """Each turn on an engine that has nothing: from its whole history saved by the turn before."""
    history = prompt(OBJECT_TOKENS - 10, 2)
    for turn in range(6):
        expected = await engine.save(history)
        text, cached = await engine.loaded(history, engine.store.runs(history))
        assert text == expected
        assert cached == (len(history) - 1) // OBJECT_TOKENS * OBJECT_TOKENS
        history += text + prompt(61, 100 + turn)


async def test_another_salt_finds_nothing(engine: Engine) -> None:
    tokens = prompt(2 * OBJECT_TOKENS + 3, 3)
    await engine.save(tokens, "tenant-a")
    stolen = engine.store.runs(tokens, "tenant-a")
    assert len(stolen) == 2
    assert engine.store.runs(tokens, "tenant-b") == ()
    await engine.forget()
    _, cached = await engine.text(tokens, TransferRequest(stolen), "tenant-b")
    assert cached == 0


def flipped(data: Object) -> Object:
    data[HEADER_BYTES + data.nbytes // 2] ^= 0x40
    return data


async def test_damaged_bytes_with_a_right_checksum_would_show(engine: Engine) -> None:
    """That the other tests can fail: the text does depend on what is loaded."""
    tokens = prompt(3 * OBJECT_TOKENS + 9, 4)
    expected = await engine.save(tokens)
    runs = engine.store.runs(tokens)

    def forged(data: Object) -> Object:
        data[HEADER_BYTES:] = np.roll(data[HEADER_BYTES:], 64)
        seal(data, ObjectKey.unpack(runs[1].key), OBJECT_BLOCKS)
        return data

    engine.store.change(runs[1].key, forged)
    text, cached = await engine.loaded(tokens, runs)
    assert cached == 3 * OBJECT_TOKENS
    assert text != expected


@pytest.mark.parametrize("place", range(3))
@pytest.mark.parametrize(
    "change", [flipped, lambda data: data[:-1], lambda data: data[:50]], ids=["flip", "cut", "stub"]
)
async def test_a_damaged_object_is_computed_instead_and_replaced(
    engine: Engine, place: int, change: Callable[[Object], Object]
) -> None:
    tokens = prompt(3 * OBJECT_TOKENS + 9, 5)
    expected = await engine.save(tokens)
    runs = engine.store.runs(tokens)
    engine.store.change(runs[place].key, change)
    text, _ = await engine.loaded(tokens, runs)
    assert text == expected
    assert await engine.save(tokens) == expected
    assert (await engine.loaded(tokens, engine.store.runs(tokens)))[0] == expected


async def test_objects_that_are_gone_are_computed(engine: Engine) -> None:
    tokens = prompt(3 * OBJECT_TOKENS + 9, 6)
    expected = await engine.save(tokens)
    runs = engine.store.runs(tokens)
    ray.get(engine.store.actor.discard.remote([runs[1].key]), timeout=30)
    assert (await engine.loaded(tokens, runs))[0] == expected


async def test_a_store_that_dies_costs_time_only(engine: Engine) -> None:
    tokens = prompt(3 * OBJECT_TOKENS + 9, 7)
    expected = await engine.save(tokens)
    runs = engine.store.runs(tokens)
    ray.kill(engine.store.actor, no_restart=True)
    assert (await engine.loaded(tokens, runs))[0] == expected
    engine.store.restart()
    await asyncio.sleep(1)
    assert await engine.save(tokens) == expected
    assert (await engine.loaded(tokens, engine.store.runs(tokens)))[0] == expected


async def test_requests_that_share_a_prefix_load_it_side_by_side(engine: Engine) -> None:
    shared = prompt(2 * OBJECT_TOKENS, 8)
    prompts = [shared + prompt(50 + 13 * number, 80 + number) for number in range(6)]
    expected = [await engine.save(tokens) for tokens in prompts]
    await engine.forget()
    plans = [TransferRequest(engine.store.runs(tokens)) for tokens in prompts]
    texts = await asyncio.gather(
        *[engine.text(tokens, plan) for tokens, plan in zip(prompts, plans, strict=True)]
    )
    assert [text for text, _ in texts] == expected
