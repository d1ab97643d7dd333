"""What the vLLM engine promises beyond the contract of every engine."""

import dataclasses
import json
from array import array
from collections.abc import Callable
from typing import Any

import pytest

from replicas.engines.protocol import EngineRequest, Route
from tests.contract.engine_client import (
    EngineClient,
    cached_tokens,
    collect,
    collect_with_report,
    fresh_prompt,
    make_request,
    stored_tokens,
    texts,
)
from tests.vllm.conftest import RunningEngine

pytestmark = [pytest.mark.vllm, pytest.mark.asyncio(loop_scope="session")]

Chat = Callable[..., EngineRequest]

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city",
        "strict": True,
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}},
            "required": ["city"],
        },
    },
}


async def ask(client: EngineClient, request: EngineRequest) -> dict[str, Any]:
    (document,) = await collect(client.engine, request)
    answer: dict[str, Any] = json.loads(document)
    return answer


# --- rendered once ------------------------------------------------------------------------------


async def test_the_engine_never_tokenizes_what_comes_as_ids(
    client: EngineClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counts every way in which vLLM's renderer turns text into ids, on all three routes."""
    calls: list[str] = []
    renderer = client.engine._llm.renderer  # type: ignore[attr-defined]
    for name in ("render_messages_async", "_tokenize_prompt_async"):
        monkeypatch.setattr(renderer, name, _recorder(getattr(renderer, name), name, calls))
    prompt = fresh_prompt(40)
    for route in Route:
        await client.ask(prompt, route=route)
    assert not calls
    for route in (Route.CHAT, Route.COMPLETIONS):
        await client.ask(prompt, route=route, needs_render=True)
    assert set(calls) == {"render_messages_async", "_tokenize_prompt_async"}


def _recorder(method: Any, name: str, calls: list[str]) -> Any:
    async def recorded(*args: Any, **kwargs: Any) -> Any:
        calls.append(name)
        return await method(*args, **kwargs)

    return recorded


async def test_ids_are_served_even_where_the_messages_say_something_else(
    client: EngineClient, chat: Chat
) -> None:
    request = chat([{"role": "user", "content": "one thing"}])
    other = make_request(
        list(array("I", request.prompts[0])),
        route=Route.CHAT,
        messages=[{"role": "user", "content": "quite another thing, and much longer"}],
    )
    first, second = await ask(client, request), await ask(client, other)
    assert first["usage"]["prompt_tokens"] == second["usage"]["prompt_tokens"]
    assert first["choices"] == second["choices"]


async def test_the_engine_logs_nothing_per_request(running: RunningEngine) -> None:
    """Ids travel in a field of KV transfers; the engine must never see one."""
    before = running.log.read_text()
    for route in Route:
        await running.client.ask(fresh_prompt(40), route=route)
    lines = running.log.read_text().removeprefix(before)
    assert not [line for line in lines.splitlines() if "WARNING" in line or "ERROR" in line]
    assert "KVConnector" not in lines


async def test_a_client_cannot_smuggle_ids_or_a_salt_past_the_ingress(
    client: EngineClient,
) -> None:
    prompt, victim = fresh_prompt(70), fresh_prompt(70)
    await client.ask(victim, cache_salt="victim")
    answer = await client.ask(
        prompt,
        route=Route.CHAT,
        cache_salt="own",
        kv_transfer_params={"prompt_token_ids": victim},
        request_id="x" * 100,
    )
    assert cached_tokens(answer) == 0
    assert answer["id"].startswith("chatcmpl-test-")
    assert texts(await client.ask(prompt)) == texts(await client.ask(prompt, cache_salt="own"))


async def test_event_ids_equal_the_ids_sent(client: EngineClient, chat: Chat) -> None:
    conversations: list[list[dict[str, Any]]] = [
        [{"role": "user", "content": "plain " * 40}],
        [{"role": "system", "content": ""}, {"role": "user", "content": "no system " * 30}],
        [{"role": "system", "content": "Be brief. " * 30}, {"role": "user", "content": "x   "}],
        [{"role": "user", "content": "emoji 🙂 and <|im_end|> and <tool_call> " * 12}],
        [{"role": "user", "content": [{"type": "text", "text": "in "}] * 60}],
    ]
    for messages in conversations:
        request = chat(messages, max_tokens=1, cache_salt=f"parity-{len(str(messages))}")
        before = await client.next_seq()
        await ask(client, request)
        ids = list(array("I", request.prompts[0]))
        full = len(ids) // client.info.block_size * client.info.block_size
        assert stored_tokens(await client.replay(before)) == ids[:full]


# --- features of vLLM ---------------------------------------------------------------------------


async def test_prompt_logprobs_read_no_cache(client: EngineClient) -> None:
    prompt = fresh_prompt(70)
    await client.ask(prompt)
    answer = await client.ask(prompt, prompt_logprobs=1)
    assert cached_tokens(answer) == 0
    assert len(answer["choices"][0]["prompt_logprobs"]) == 70


async def test_a_json_schema_binds_the_answer(client: EngineClient) -> None:
    schema = {
        "type": "object",
        "properties": {"answer": {"enum": ["yes", "no"]}},
        "required": ["answer"],
        "additionalProperties": False,
    }
    answer = await client.ask(
        fresh_prompt(20),
        route=Route.CHAT,
        max_tokens=40,
        ignore_eos=False,
        response_format={
            "type": "json_schema",
            "json_schema": {"name": "answer", "schema": schema, "strict": True},
        },
    )
    content = json.loads(answer["choices"][0]["message"]["content"])
    assert content["answer"] in ("yes", "no")


@pytest.mark.parametrize(
    "choice",
    ["required", {"type": "function", "function": {"name": "get_weather"}}],
    ids=["required", "named"],
)
async def test_a_forced_tool_call_fits_its_schema(
    client: EngineClient, chat: Chat, choice: Any
) -> None:
    """Ended after the first call: a random model would go on calling."""
    request = chat(
        [{"role": "user", "content": "How is the weather?"}],
        tools=[WEATHER],
        tool_choice=choice,
        max_tokens=200,
        ignore_eos=False,
        stop=["</tool_call>"],
        include_stop_str_in_output=True,
    )
    message = (await ask(client, request))["choices"][0]["message"]
    (call,) = message["tool_calls"]
    assert call["function"]["name"] == "get_weather"
    assert json.loads(call["function"]["arguments"])["city"] in ("Paris", "Rome")


async def test_tools_may_be_offered_without_a_call(client: EngineClient, chat: Chat) -> None:
    request = chat([{"role": "user", "content": "Hello"}], tools=[WEATHER])
    (choice,) = (await ask(client, request))["choices"]
    assert choice["message"]["content"]
    assert choice["finish_reason"] == "length"


@pytest.mark.parametrize("is_stream", [False, True])
async def test_cached_tokens_of_a_list_are_the_sum_over_its_prompts(
    client: EngineClient, is_stream: bool
) -> None:
    prompts = [fresh_prompt(70), fresh_prompt(40), fresh_prompt(100)]
    await client.ask(prompts[0])
    await client.ask(prompts[2])
    if is_stream:
        chunks = await client.stream(*prompts, stream_options={"include_usage": True})
        answer = chunks[-1]
    else:
        answer = await client.ask(*prompts)
    assert cached_tokens(answer) == 64 + 96
    assert answer["usage"]["prompt_tokens"] == 210


async def test_echo_needs_no_second_tokenization(client: EngineClient, tokenizer: Any) -> None:
    ids = tokenizer("The operator asks for a list.", add_special_tokens=False)["input_ids"]
    answer = await client.ask(ids, echo=True)
    assert texts(answer)[0].startswith("The operator asks for a list.")


# --- the ids that the client has seen -----------------------------------------------------------


@pytest.mark.parametrize("include", [False, True])
async def test_the_reported_ids_are_the_text_that_a_stop_string_left(
    client: EngineClient, tokenizer: Any, include: bool
) -> None:
    """Wherever in a token it cuts, and where bytes of one character are spread over tokens."""
    for _ in range(8):
        prompt = fresh_prompt(20)
        (whole,) = texts(await client.ask(prompt, max_tokens=16))
        for start in range(0, len(whole) - 2, 3):
            options = {"stop": [whole[start : start + 2]], "include_stop_str_in_output": include}
            request = make_request(prompt, max_tokens=16, **options)
            request = dataclasses.replace(request, reports_tokens=True)
            (document,), report = await collect_with_report(client.engine, request)
            (shown,) = texts(json.loads(document))
            assert report.output is not None
            seen = array("I", report.output.seen_tokens).tolist()
            assert tokenizer.decode(seen, skip_special_tokens=True) == shown
