"""The simulator's HTTP face with the clients that it is for: OpenAI's SDK, our event subscriber."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import httpx
import openai
import pytest
import uvicorn
from openai import AsyncOpenAI
from prometheus_client.parser import text_string_to_metric_families

from replicas.engines.sim import SimEngine
from replicas.engines.sim_faults import FaultKind, SimFault
from replicas.engines.sim_publisher import Endpoints
from replicas.kv.feed import EngineFeed
from replicas.kv.mirror import Mirror
from replicas.kv.subscriber import EventSubscriber, SubscriberSettings
from replicas.sim_server.command import serve
from router.configuration import SimConfig
from router.core.types import Incarnation, ReplicaId

BLOCK_SIZE = 4
CONFIG = SimConfig(
    block_size=BLOCK_SIZE,
    max_model_len=400,
    prefill_ms_per_token=0,
    prefill_base_ms=0,
    decode_ms_per_token=1,
)
CHAT = [{"role": "user", "content": "Tell me about the weather in Reykjavik."}]
VLLM_NAMES = {
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:kv_cache_usage_perc",
    "vllm:num_preemptions",
    "vllm:prefix_cache_queries",
    "vllm:prefix_cache_hits",
    "vllm:prompt_tokens",
    "vllm:generation_tokens",
    "vllm:request_success",
    "vllm:time_to_first_token_seconds",
    "vllm:inter_token_latency_seconds",
    "vllm:e2e_request_latency_seconds",
    "vllm:request_prompt_tokens",
    "vllm:request_generation_tokens",
}
"""Of vLLM 0.32's own, those that the simulator has a value for."""


@dataclass(frozen=True)
class Running:
    """A server at work, and where its events are."""

    url: str
    endpoints: Endpoints
    engine: SimEngine

    @property
    def client(self) -> AsyncOpenAI:
        return AsyncOpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0)

    async def get(self, path: str) -> httpx.Response:
        async with httpx.AsyncClient() as http:
            return await http.get(self.url + path)

    async def post(self, path: str, body: dict[str, Any]) -> Any:
        async with httpx.AsyncClient() as http:
            return (await http.post(self.url + path, json=body)).json()


@pytest.fixture
async def server(tmp_path: Any) -> AsyncIterator[Running]:
    endpoints = Endpoints(f"ipc://{tmp_path}/events", f"ipc://{tmp_path}/replay")
    face = serve(CONFIG, "m", endpoints)
    config = uvicorn.Config(face.application(), port=0, log_level="error", ws="none")
    runner = uvicorn.Server(config)
    serving = asyncio.create_task(runner.serve())
    while not runner.started:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    port = runner.servers[0].sockets[0].getsockname()[1]
    yield Running(f"http://127.0.0.1:{port}", endpoints, face.engine)
    runner.should_exit = True
    await serving


async def chat(server: Running, messages: list[Any], **options: Any) -> Any:
    return await server.client.chat.completions.create(model="m", messages=messages, **options)


def cached(answer: Any) -> int:
    tokens: int = answer.usage.prompt_tokens_details.cached_tokens
    return tokens


async def test_a_conversation_finds_its_last_turn_and_the_answer_to_it(server: Running) -> None:
    first = await chat(server, CHAT, max_tokens=9)
    said = first.choices[0].message.content
    messages = [*CHAT, {"role": "assistant", "content": said}, *CHAT]
    second = await chat(server, messages, max_tokens=2)
    computed = first.usage.prompt_tokens + first.usage.completion_tokens - 1
    assert cached(first) == 0
    assert cached(second) == computed // BLOCK_SIZE * BLOCK_SIZE


async def test_a_stream_says_what_the_document_says(server: Running) -> None:
    whole = await chat(server, CHAT, max_tokens=6, temperature=0)
    options = {"stream": True, "stream_options": {"include_usage": True}}
    chunks = [
        part async for part in await chat(server, CHAT, max_tokens=6, temperature=0, **options)
    ]
    said = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert said == whole.choices[0].message.content
    assert chunks[-1].usage.completion_tokens == 6
    assert cached(chunks[-1]) == (chunks[-1].usage.prompt_tokens - 1) // BLOCK_SIZE * BLOCK_SIZE


async def test_completions_take_text_and_ids(server: Running) -> None:
    answer = await server.client.completions.create(
        model="m", prompt=[[1, 2, 3], [4, 5]], max_tokens=2
    )
    assert [choice.index for choice in answer.choices] == [0, 1]
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == 5


async def test_mistakes_are_errors_of_openais_kinds(server: Running) -> None:
    with pytest.raises(openai.NotFoundError):
        await server.client.completions.create(model="n", prompt="x")
    with pytest.raises(openai.BadRequestError, match="maximum context length"):
        await server.client.completions.create(model="m", prompt=[1] * 500)
    with pytest.raises(openai.BadRequestError):
        await chat(server, [])


async def test_a_stream_that_breaks_off_says_so(server: Running) -> None:
    stream = await chat(server, CHAT, max_tokens=300, stream=True)
    await anext(aiter(stream))
    server.engine.inject(SimFault(FaultKind.FAIL_REQUEST))
    with pytest.raises(openai.APIError, match="failed to generate"):
        async for _ in stream:
            pass


async def test_a_salt_separates_tenants(server: Running) -> None:
    for salt in ("a", "b"):
        answer = await chat(server, CHAT, max_tokens=1, extra_body={"cache_salt": salt})
        assert cached(answer) == 0


async def test_a_rendered_prompt_is_the_one_that_is_served(server: Running) -> None:
    body = {"model": "m", "messages": CHAT, "max_tokens": 3}
    rendered = await server.post("/v1/chat/completions/render", body)
    answer = await chat(server, CHAT, max_tokens=1)
    again = await server.client.completions.create(
        model="m", prompt=rendered["token_ids"], max_tokens=1
    )
    tokens = len(rendered["token_ids"])
    assert answer.usage.prompt_tokens == tokens
    assert rendered["sampling_params"]["max_tokens"] == 3
    assert cached(again) == (tokens - 1) // BLOCK_SIZE * BLOCK_SIZE


async def test_a_list_of_prompts_is_rendered_one_by_one(server: Running) -> None:
    both = await server.post("/v1/completions/render", {"prompt": ["Hello", [7, 8]]})
    assert [len(one["token_ids"]) for one in both] == [2, 2]
    assert both[1]["token_ids"] == [7, 8]


async def test_tokenize_counts_as_usage_does(server: Running) -> None:
    counted = await server.post("/tokenize", {"messages": CHAT, "return_token_strs": True})
    answer = await chat(server, CHAT, max_tokens=1)
    assert counted["count"] == len(counted["tokens"]) == answer.usage.prompt_tokens
    assert len(counted["token_strs"]) == counted["count"]
    assert counted["max_model_len"] == CONFIG.max_model_len


async def test_it_is_healthy_and_names_its_model(server: Running) -> None:
    assert (await server.get("/health")).status_code == 200
    assert [model.id async for model in server.client.models.list()] == ["m"]


async def test_metrics_have_vllms_names_and_add_up(server: Running) -> None:
    answers = [await chat(server, CHAT, max_tokens=3) for _ in range(2)]
    families = {
        family.name: family
        for family in text_string_to_metric_families((await server.get("/metrics")).text)
    }
    names = {name for name in families if not name.endswith("_created")}
    assert names == VLLM_NAMES
    values = {
        sample.name: sample.value for family in families.values() for sample in family.samples
    }
    assert values["vllm:prefix_cache_hits_total"] == sum(map(cached, answers))
    assert values["vllm:generation_tokens_total"] == 6
    assert values["vllm:time_to_first_token_seconds_count"] == 2
    assert values["vllm:inter_token_latency_seconds_count"] == 4
    assert values["vllm:kv_cache_usage_perc"] == 0


@pytest.mark.parametrize("is_stream", [True, False])
async def test_a_client_that_leaves_frees_its_blocks(server: Running, is_stream: bool) -> None:
    if is_stream:
        stream = await chat(server, CHAT, max_tokens=300, stream=True)
        await anext(aiter(stream))
        await stream.close()
    else:
        asking = asyncio.create_task(chat(server, CHAT, max_tokens=300))
        while not server.engine.num_unfinished():  # noqa: ASYNC110
            await asyncio.sleep(0.002)
        asking.cancel()
    async with asyncio.timeout(5):
        while server.engine.num_unfinished():  # noqa: ASYNC110
            await asyncio.sleep(0.002)
    assert server.engine.active_blocks == 0
    assert "vllm:request_success_total{" not in (await server.get("/metrics")).text


async def test_an_event_subscriber_follows_the_cache(server: Running) -> None:
    """What was stored before it came is replayed to it."""
    await chat(server, CHAT, max_tokens=1)
    mirror = Mirror(ReplicaId("r"), Incarnation(1), BLOCK_SIZE)
    subscriber = EventSubscriber(
        server.endpoints.events,
        server.endpoints.replay,
        EngineFeed(mirror),
        lambda: None,
        SubscriberSettings(check_after_s=0.05),
    )
    reading = asyncio.create_task(subscriber.run())
    answer = await chat(server, [*CHAT, *CHAT], max_tokens=1)
    stored_blocks = answer.usage.prompt_tokens // BLOCK_SIZE
    first_blocks = (await server.post("/tokenize", {"messages": CHAT}))["count"] // BLOCK_SIZE
    shared_blocks = cached(answer) // BLOCK_SIZE
    async with asyncio.timeout(5):
        while len(mirror) < stored_blocks + first_blocks - shared_blocks:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    subscriber.close()
