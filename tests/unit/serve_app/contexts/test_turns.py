"""Turns over HTTP, down to the ids that the engine gets."""

import asyncio
import json
from array import array
from typing import Any

import httpx
import pytest

from serve_app.contexts.prompts import TurnRenderer
from tests.unit.serve_app.contexts.local_front import LocalFront

SYSTEM = {"role": "system", "content": "You are a helpful assistant."}
HI = {"role": "user", "content": "hi"}
AGAIN = {"role": "user", "content": "and again"}
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": {}}}


async def created(front: LocalFront, **body: Any) -> dict[str, Any]:
    answer = await front.client.post("/v1/context", json={"model": "m"} | body)
    assert answer.status_code == 201, answer.text
    return answer.json()


async def turn(
    front: LocalFront, context: dict[str, Any], *messages: dict[str, Any], **body: Any
) -> httpx.Response:
    headers = {"x-session-id": context["id"]} | body.pop("headers", {})
    body = {"model": "m", "messages": messages, "max_tokens": 4, "temperature": 0} | body
    return await front.client.post("/v1/chat/completions", json=body, headers=headers)


async def continued(
    front: LocalFront, context: dict[str, Any], prompt: object, **body: Any
) -> httpx.Response:
    headers = {"x-session-id": context["id"]} | body.pop("headers", {})
    body = {"model": "m", "prompt": prompt, "max_tokens": 4, "temperature": 0} | body
    return await front.client.post("/v1/completions", json=body, headers=headers)


async def seen(front: LocalFront, context: dict[str, Any]) -> dict[str, Any]:
    answer = await front.client.get(f"/v1/context/{context['id']}")
    assert answer.status_code == 200, answer.text
    return answer.json()


async def until_free(front: LocalFront, context: dict[str, Any]) -> None:
    """Asked again and again, as a client would."""
    async with asyncio.timeout(5):
        while (await seen(front, context))["expires_at"] is None:  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def chat_ids(front: LocalFront, messages: list[dict[str, Any]], **more: Any) -> list[int]:
    body = {"model": "m", "messages": messages} | more
    return (await front.client.post("/tokenize", json=body)).json()["tokens"]


def sent(front: LocalFront, place: int = -1) -> list[int]:
    """The ids of a request that the engine got."""
    (prompt,) = front.requests[place].prompts
    return array("I", prompt).tolist()


def events(text: str) -> list[str]:
    return [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]


async def test_a_created_chat_is_the_rendering_without_the_place_for_an_answer(
    front: LocalFront,
) -> None:
    context = await created(front, messages=[SYSTEM, HI], ttl=60, metadata={"a": "b"})
    ids = await chat_ids(front, [SYSTEM, HI], add_generation_prompt=False)
    assert sent(front) == ids
    assert json.loads(front.requests[-1].body)["max_tokens"] == 1
    usage = {
        "prompt_tokens": len(ids),
        "completion_tokens": 0,
        "total_tokens": len(ids),
        "prompt_tokens_details": {"cached_tokens": 0},
    }
    expected = {
        "object": "context",
        "kind": "chat",
        "model": "m",
        "ttl": 60,
        "turns": 0,
        "tokens": len(ids),
        "metadata": {"a": "b"},
        "usage": usage,
        "cache": {"stored_tokens": 0, "stored_bytes": 0},
    }
    assert {name: context[name] for name in expected} == expected
    assert context["expires_at"] == context["last_used_at"] + 60
    assert await seen(front, context) == context


@pytest.mark.parametrize("is_stream", [False, True])
async def test_a_turn_sends_history_and_delta_and_keeps_what_was_generated(
    front: LocalFront, is_stream: bool
) -> None:
    context = await created(front, messages=[SYSTEM])
    first = await turn(front, context, HI, stream=is_stream)
    assert first.status_code == 200
    asked = await chat_ids(front, [SYSTEM, HI])
    assert sent(front) == asked
    said = array("I", front.commits[-1].tail).tolist()[-4:]
    await turn(front, context, AGAIN, stream=is_stream)
    closing = await chat_ids(front, [SYSTEM, HI, {"role": "assistant", "content": "x"}, AGAIN])
    delta = closing[len(asked) + 1 :]
    assert sent(front) == asked + said + delta
    view = await seen(front, context)
    assert (view["turns"], view["tokens"]) == (2, len(sent(front)) + 4)
    assert view["usage"]["prompt_tokens"] == len(sent(front))
    assert view["usage"]["completion_tokens"] == 4


async def test_usage_counts_the_whole_prompt_and_what_was_cached(front: LocalFront) -> None:
    context = await created(front, messages=[SYSTEM])
    usage = (await turn(front, context, HI)).json()["usage"]
    assert usage["prompt_tokens"] == len(await chat_ids(front, [SYSTEM, HI]))
    assert usage["prompt_tokens_details"]["cached_tokens"] >= context["tokens"] - 4
    assert (await seen(front, context))["usage"]["prompt_tokens_details"] == usage[
        "prompt_tokens_details"
    ]


@pytest.mark.parametrize("is_stream", [False, True])
async def test_a_completion_continues_ids_with_text_that_begins_nothing(
    front: LocalFront, is_stream: bool
) -> None:
    context = await created(front, prompt="Once upon a time")
    tokens = (await front.client.post("/tokenize", json={"model": "m", "prompt": " there"})).json()
    begin, *there = tokens["tokens"]
    history = sent(front)
    assert history[0] == begin
    await continued(front, context, " there", stream=is_stream)
    assert sent(front) == history + there
    await continued(front, context, [7, 8], stream=is_stream)
    assert sent(front)[-2:] == [7, 8]
    assert len(sent(front)) == len(history) + len(there) + 4 + 2


async def test_a_stop_string_and_what_it_cuts_are_not_kept(front: LocalFront) -> None:
    context = await created(front, prompt=[1, 2, 3])
    probe = await front.client.post(f"/v1/context/{context['id']}/fork")
    text = (await continued(front, probe.json(), [4])).json()["choices"][0]["text"]
    words = text.split()
    await continued(front, context, [4], stop=[words[2]])
    assert (await seen(front, context))["tokens"] == 4 + 2


async def test_the_models_answer_is_a_message_of_the_next_rendering(front: LocalFront) -> None:
    context = await created(front, messages=[SYSTEM])
    said = (await turn(front, context, HI)).json()["choices"][0]["message"]["content"]
    line = front.commits[-1].document_tail.split(b"\n")[-1]
    assert json.loads(line) == {
        "message": {"role": "assistant", "content": said},
        "is_answer": True,
    }


async def test_the_tools_of_a_context_hold_for_its_turns(front: LocalFront) -> None:
    context = await created(front, messages=[SYSTEM], tools=[WEATHER])
    assert (await turn(front, context, HI)).status_code == 200
    assert sent(front) == await chat_ids(front, [SYSTEM, HI], tools=[WEATHER])
    assert json.loads(front.requests[-1].body)["tools"] == [WEATHER]
    assert (await turn(front, context, AGAIN, tools=[WEATHER])).status_code == 200
    refused = await turn(front, context, AGAIN, tools=[])
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "tools_changed")


async def test_a_turn_whose_commit_fails_ends_in_an_error_and_leaves_the_context_free(
    front: LocalFront,
) -> None:
    context = await created(front, messages=[SYSTEM])
    front.contexts.goes_down_at_commit = True
    whole = await turn(front, context, HI)
    assert whole.status_code == 503
    assert int(whole.headers["retry-after"]) >= 1
    assert front.statuses[1:] == [503]
    front.contexts.is_down = False
    await until_free(front, context)
    front.contexts.goes_down_at_commit = True
    streamed = await turn(front, context, HI, stream=True, max_tokens=8)
    *chunks, last = map(json.loads, events(streamed.text))
    assert last["error"]["code"] == "contexts_unavailable"
    assert front.statuses[2:] == [503]
    assert not any(choice["finish_reason"] for chunk in chunks for choice in chunk["choices"])
    front.contexts.is_down = False
    await until_free(front, context)
    assert (await seen(front, context))["turns"] == 0
    assert (await turn(front, context, HI)).status_code == 200
    assert front.statuses[3:] == [200]


async def test_a_refused_turn_leaves_the_context_free(front: LocalFront) -> None:
    context = await created(front, messages=[SYSTEM])
    for body in ({"temperature": -1}, {"max_tokens": 100_000}, {"messages": [{"role": 5}]}):
        refused = await turn(front, context, HI, **body)
        assert refused.status_code == 400, body
        view = await seen(front, context)
        assert (view["turns"], view["expires_at"] is None) == (0, False)


async def test_too_long_a_conversation_is_refused_and_kept(front: LocalFront) -> None:
    context = await created(front, prompt=[5] * 1900)
    refused = await continued(front, context, [6] * 100)
    assert (refused.status_code, refused.json()["error"]["code"]) == (
        400,
        "context_length_exceeded",
    )
    refused = await continued(front, context, [6] * 10, max_tokens=91)
    assert refused.json()["error"]["code"] == "context_length_exceeded"
    assert (await continued(front, context, [6] * 10, max_tokens=90)).status_code == 200


async def test_no_id_of_a_context_reaches_the_engine(front: LocalFront) -> None:
    context = await created(front, messages=[SYSTEM])
    await turn(front, context, HI)
    assert all(context["id"].encode() not in request.body for request in front.requests)


@pytest.mark.parametrize("is_stream", [False, True])
async def test_a_template_that_rewrites_history_replaces_it_and_says_so(
    front: LocalFront, renderer: TurnRenderer, monkeypatch: pytest.MonkeyPatch, is_stream: bool
) -> None:
    """A template that shows a count of messages changes with each."""
    template = renderer._online  # type: ignore[attr-defined]
    counting = (
        "{{ messages | length }}{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
    )
    monkeypatch.setattr(template, "chat_template", counting)
    context = await created(front, messages=[SYSTEM])
    options = {"stream": is_stream, "stream_options": {"include_usage": True}} if is_stream else {}
    answer = await turn(front, context, HI, **options)
    last = json.loads(events(answer.text)[-2]) if is_stream else answer.json()
    assert last["history_rewritten"] is True
    assert last["usage"]["prompt_tokens"] == len(prompt := sent(front))
    assert (await seen(front, context))["tokens"] == len(prompt) + 4
    whole = {"model": "m", "messages": [SYSTEM, HI], "max_tokens": 1}
    await front.client.post("/v1/chat/completions", json=whole)
    assert sent(front) == prompt


async def test_without_a_renderer_contexts_are_refused_and_not_guessed_at(
    front: LocalFront, renderer: TurnRenderer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine would render what is new, and only that."""
    context = await created(front, messages=[SYSTEM])
    before = len(front.requests)

    async def fail(*_: object, **__: object) -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr(renderer, "delta_ids", fail)
    monkeypatch.setattr(renderer, "render", fail)
    for answer in (
        await turn(front, context, HI),
        await front.client.post("/v1/context", json={"model": "m", "prompt": "a"}),
    ):
        assert (answer.status_code, answer.json()["error"]["code"]) == (500, "engine_error")
    assert len(front.requests) == before
    view = await seen(front, context)
    assert (view["turns"], view["expires_at"] is None) == (0, False)


@pytest.mark.parametrize("place", ["creation", "turn"])
async def test_a_context_takes_text_only(front: LocalFront, place: str) -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    asked = {"role": "user", "content": [image]}
    if place == "creation":
        answer = await front.client.post("/v1/context", json={"model": "m", "messages": [asked]})
    else:
        answer = await turn(front, await created(front, messages=[SYSTEM]), asked)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "messages")
