"""Bad requests to a real engine, and requests that nobody waits for any more."""

import asyncio
from typing import Any

import pytest

from replicas.engines.protocol import Route
from router.core.errors import RequestRejected
from tests.contract.engine_client import EngineClient, collect, fresh_prompt, make_request

pytestmark = [pytest.mark.vllm, pytest.mark.asyncio(loop_scope="session")]


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": {"type": "json_schema"}}, None),
        ({"temperature": -1}, "temperature"),
        ({"top_p": 3}, "top_p"),
        ({"logit_bias": {"999999": 1}}, None),
        ({"model": "another"}, "model"),
    ],
    ids=["no schema", "temperature", "top_p", "bias", "model"],
)
async def test_a_refusal_names_the_field(
    client: EngineClient, fields: dict[str, Any], param: str | None, is_stream: bool
) -> None:
    request = make_request(fresh_prompt(9), route=Route.CHAT, is_stream=is_stream, **fields)
    with pytest.raises(RequestRejected) as refusal:
        await anext(client.engine.generate(request))
    assert 400 <= refusal.value.status < 500
    assert refusal.value.message
    if param is not None:
        assert refusal.value.param == param


@pytest.mark.parametrize(
    "fields",
    [
        {"messages": ["do not repeat me " * 60] * 500},
        {"stop": [{"do not repeat me": 1}] * 500},
        {"tools": 5, "user": "do not repeat me"},
        {"reasoning_effort": "do not repeat me " * 60},
    ],
    ids=["messages", "stop", "tools", "effort"],
)
async def test_a_refusal_is_short_and_echoes_nothing(
    client: EngineClient, fields: dict[str, Any]
) -> None:
    request = make_request(fresh_prompt(9), route=Route.CHAT, **fields)
    with pytest.raises(RequestRejected) as refusal:
        await anext(client.engine.generate(request))
    assert "do not repeat me" not in refusal.value.message
    assert len(refusal.value.message) < 1000


@pytest.mark.parametrize("prompts", [[], [[]]], ids=["no prompt", "empty prompt"])
async def test_an_empty_prompt_is_refused_and_harms_nobody(
    client: EngineClient, prompts: list[list[int]]
) -> None:
    with pytest.raises(RequestRejected):
        await anext(client.engine.generate(make_request(*prompts)))
    assert (await client.ask(fresh_prompt(9)))["choices"]


async def test_ids_outside_the_vocabulary_are_refused(client: EngineClient) -> None:
    for route in Route:
        with pytest.raises(RequestRejected):
            await anext(client.engine.generate(make_request([5, 10**6], route=route)))


async def test_three_hundred_cancelled_requests_leave_an_idle_engine(
    client: EngineClient,
) -> None:
    """Half streamed, half not, stopped at any point of their life; each is aborted."""
    tasks = [
        asyncio.create_task(
            collect(
                client.engine,
                make_request(fresh_prompt(64), is_stream=bool(i % 2), max_tokens=2000),
            )
        )
        for i in range(300)
    ]
    for i, task in enumerate(tasks):
        if i % 50 == 0:
            await asyncio.sleep(0.1)
        task.cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(result, asyncio.CancelledError) for result in results)
    await client.until_idle()
    assert await client.engine.reset_prefix_cache()
