"""The contract's table against two real replicas, with each journal; whole conversations."""

import os
import shutil
import signal
import socket
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.contract.context_table import *  # noqa: F403  # every test there is one here
from tests.contract.redis_server import BINARY, RedisServer
from tests.serve.cached_app import until
from tests.serve.context_calls import STREAMED, Caller, bearer, user
from tests.vllm.real_app import RealApp, running_app

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(900)]

TURNS = 50
RESTART_LIMIT_S = 240
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "strict": True,
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Oslo", "Lima"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
NO_REDIS = pytest.mark.skipif(BINARY is None, reason="redis-server is not installed")


@pytest.fixture(scope="module", params=["sqlite", pytest.param("redis", marks=NO_REDIS)])
def started(request: pytest.FixtureRequest) -> Iterator[RealApp]:
    folder = Path(tempfile.mkdtemp(prefix="wp-", dir="/tmp"))
    kept = Path(tempfile.mkdtemp(prefix="wp-kept-", dir="/tmp"))
    server = RedisServer(kept) if request.param == "redis" else None
    if server is not None:
        server.start()
    journal = f"{kept}/contexts.sqlite" if server is None else server.url
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    contexts = {"journal": journal, "lease_s": 2.0}
    try:
        with running_app(folder, port, {"tool_call_parser": "hermes"}, contexts=contexts) as app:
            yield app
    finally:
        if server is not None:
            server.kill()
        shutil.rmtree(folder, ignore_errors=True)
        shutil.rmtree(kept, ignore_errors=True)


@pytest.fixture(scope="module")
def contexts_http(started: RealApp) -> Iterator[httpx.Client]:
    limits = httpx.Limits(max_connections=100)
    with httpx.Client(base_url=started.url, timeout=120, limits=limits) as client:
        yield client


@pytest.fixture
def ann(contexts_http: httpx.Client) -> Caller:
    return Caller(contexts_http, "m", "ann")


@pytest.fixture
def bob(contexts_http: httpx.Client) -> Caller:
    return Caller(contexts_http, "m", "bob")


@pytest.fixture
def max_model_len() -> int:
    return 2048


def completed(caller: Caller, prompt: list[int], **body: Any) -> dict[str, Any]:
    """The same model asked with all the ids at once, without a context."""
    whole = {"model": "m", "prompt": prompt, "return_token_ids": True} | caller.options | body
    answer = caller.http.post("/v1/completions", json=whole, headers=bearer(caller.tenant))
    assert answer.status_code == 200, answer.text
    (choice,) = answer.json()["choices"]
    return dict(choice)


def test_fifty_turns_of_text_are_what_the_same_ids_give_at_once(ann: Caller) -> None:
    prompt = list(range(300, 340))
    name = ann.created(prompt=prompt)
    options = {"max_tokens": 8, "ignore_eos": True}
    for turn in range(TURNS):
        new = [400 + turn, 401 + turn, 402 + turn]
        answer = ann.complete(name, new, return_token_ids=True, **options)
        assert answer.status_code == 200, answer.text
        (choice,) = answer.json()["choices"]
        prompt += new
        whole = completed(ann, prompt, **options)
        assert (choice["text"], choice["token_ids"]) == (whole["text"], whole["token_ids"])
        prompt += choice["token_ids"]
        assert answer.json()["usage"]["prompt_tokens"] == len(prompt) - 8
    assert ann.get(name)["tokens"] == len(prompt)


def test_fifty_turns_of_chat_are_what_the_same_ids_give_at_once(ann: Caller) -> None:
    """Whatever ends an answer: its length, the model itself, a stop string."""
    name = ann.created(messages=[{"role": "system", "content": "You are a helpful assistant."}])
    before: list[int] = []
    for turn in range(TURNS):
        options: dict[str, Any] = {"max_tokens": 8} | ({"stop": ["e"]} if turn % 3 == 2 else {})
        answer = ann.chat(name, f"the question {turn}", return_token_ids=True, **options)
        assert answer.status_code == 200, answer.text
        document = answer.json()
        prompt, (choice,) = document["prompt_token_ids"], document["choices"]
        assert prompt[: len(before)] == before
        whole = completed(ann, prompt, **options)
        assert choice["token_ids"] == whole["token_ids"]
        assert choice["message"]["content"] == whole["text"]
        is_cut = choice["finish_reason"] == "length"
        before = prompt + (choice["token_ids"] if is_cut else [])
    assert ann.get(name)["turns"] == TURNS


def test_a_tool_call_and_its_result_are_turns_like_others(ann: Caller) -> None:
    """The template writes the call in another way than the model did, whose ids are kept."""
    name = ann.created(messages=[user("hi")], tools=[TOOL])
    forced = {"type": "function", "function": {"name": "weather"}}
    options: dict[str, Any] = {"max_tokens": 80, "return_token_ids": True}
    first = ann.chat(name, "the weather in Oslo?", tool_choice=forced, **options).json()
    (choice,) = first["choices"]
    (call,) = choice["message"]["tool_calls"]
    assert call["function"]["name"] == "weather"
    told = {"role": "tool", "tool_call_id": call["id"], "content": "sunny"}
    second = ann.chat(name, told, **options)
    assert second.status_code == 200, second.text
    prompt = second.json()["prompt_token_ids"]
    said = choice["token_ids"]
    kept = said if choice["finish_reason"] == "length" else said[:-1]
    assert prompt[: len(first["prompt_token_ids"]) + len(kept)] == first["prompt_token_ids"] + kept
    assert "history_rewritten" not in second.json()
    assert ann.get(name)["turns"] == 2


def test_a_conversation_finds_its_prefix_cached(ann: Caller) -> None:
    name = ann.created(prompt=list(range(500, 700)))
    for turn in range(3):
        usage = ann.complete(name, [turn + 5]).json()["usage"]
        assert usage["prompt_tokens_details"]["cached_tokens"] >= 160


def is_there(caller: Caller, name: str) -> bool:
    with suppress(httpx.TransportError):
        return caller.call("GET", f"/{name}").status_code == 200
    return False


def test_an_ingress_killed_mid_turn_leaves_the_last_committed_state(
    ann: Caller, started: RealApp
) -> None:
    name = ann.created(messages=[user("hi")])
    assert ann.chat(name, "a").status_code == 200
    before = ann.get(name)
    body = {"messages": [user("go on")], "max_tokens": 900, "ignore_eos": True} | STREAMED
    headers, body = ann.turn_request(name, body)
    ingresses = started.pids("Ingress")
    with (
        suppress(httpx.TransportError),
        ann.http.stream("POST", "/v1/chat/completions", json=body, headers=headers) as answer,
    ):
        lines = answer.iter_lines()
        next(line for line in lines if line.startswith("data: "))
        for pid in ingresses:
            os.kill(pid, signal.SIGKILL)
        assert "data: [DONE]" not in list(lines)
    time.sleep(2.5)
    until(lambda: is_there(ann, name), RESTART_LIMIT_S)
    after = ann.get(name)
    assert after["expires_at"] is not None
    assert (after["turns"], after["tokens"], after["usage"]) == (
        before["turns"],
        before["tokens"],
        before["usage"],
    )
    assert ann.chat(name, "b", headers={"x-session-turn": "1"}).status_code == 200
