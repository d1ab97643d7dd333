"""The unchanged `openai` client against a real vLLM replica behind the real builder."""

import json
import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

os.environ["RAY_AUTH_MODE"] = "disabled"

import httpx
import pytest
import ray
from openai import BadRequestError, NotFoundError, OpenAI
from ray import serve

from router.configuration import AppConfig
from serve_app.app import build

pytestmark = [pytest.mark.vllm, pytest.mark.slow]

MODEL = "tiny"
HI = [{"role": "user", "content": "hello there"}]
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


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """One vLLM replica on the CPU behind the ingress, as `serve run` brings it up."""
    folder = Path(tempfile.mkdtemp(prefix="wp-vllm-", dir="/tmp"))
    ray.init(
        address="local",
        num_cpus=4,
        include_dashboard=False,
        namespace="serve",
        log_to_driver=False,
        _temp_dir=str(folder),
        _node_ip_address="127.0.0.1",
    )
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    serve.start(http_options={"host": "127.0.0.1", "port": port}, proxy_location="HeadOnly")
    model = {
        "name": MODEL,
        "tool_call_parser": "hermes",
        "cpus_per_replica": 0,
        "engine_args": {"max_model_len": 2048, "max_num_seqs": 16},
    }
    serve.run(build(AppConfig.model_validate({"models": [model]})), name="vllm", route_prefix="/")
    yield f"http://127.0.0.1:{port}"
    serve.shutdown()
    ray.shutdown()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def openai(url: str) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=120) as client:
        yield client


def test_a_chat_is_the_same_streamed_or_not(openai: OpenAI) -> None:
    """And what is cached shows in the usage of both."""
    ask = {"model": MODEL, "messages": HI, "max_tokens": 12, "temperature": 0}
    plain = openai.chat.completions.create(**ask)
    chunks = list(
        openai.chat.completions.create(**ask, stream=True, stream_options={"include_usage": True})
    )
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == plain.choices[0].message.content
    assert chunks[-1].choices == []
    assert chunks[-1].usage.prompt_tokens == plain.usage.prompt_tokens
    assert plain.usage.prompt_tokens_details.cached_tokens is not None


def test_a_long_prefix_is_found_in_the_cache(openai: OpenAI) -> None:
    ask = {"model": MODEL, "prompt": list(range(10, 107)), "max_tokens": 1}  # 3 blocks and a token
    cached = [
        openai.completions.create(**ask).usage.prompt_tokens_details.cached_tokens for _ in "ab"
    ]
    assert cached == [0, 96]


def test_several_choices_and_their_logprobs(openai: OpenAI) -> None:
    answer = openai.chat.completions.create(
        model=MODEL, messages=HI, n=3, max_tokens=4, logprobs=True, top_logprobs=2, seed=1
    )
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert all(len(token.top_logprobs) == 2 for token in answer.choices[0].logprobs.content)


def test_a_named_tool_is_called_with_arguments_of_its_schema(openai: OpenAI) -> None:
    answer = openai.chat.completions.create(
        model=MODEL,
        messages=HI,
        tools=[TOOL],
        tool_choice={"type": "function", "function": {"name": "weather"}},
        max_tokens=200,
        temperature=0,
        stop=["</tool_call>"],  # a random model would go on calling
        extra_body={"include_stop_str_in_output": True},
    )
    (call,) = answer.choices[0].message.tool_calls
    assert call.function.name == "weather"
    assert json.loads(call.function.arguments)["city"] in ("Oslo", "Lima")


def test_tools_change_what_the_model_reads(openai: OpenAI) -> None:
    def prompt_tokens(**more: object) -> int:
        ask = {"model": MODEL, "messages": HI, "max_tokens": 1, **more}
        return openai.chat.completions.create(**ask).usage.prompt_tokens

    assert prompt_tokens(tools=[TOOL]) > prompt_tokens()


def test_structured_output_keeps_to_its_schema(openai: OpenAI) -> None:
    schema = {
        "type": "object",
        "properties": {"ok": {"type": "boolean"}},
        "required": ["ok"],
        "additionalProperties": False,
    }
    answer = openai.chat.completions.create(
        model=MODEL,
        messages=HI,
        max_tokens=60,
        temperature=0,
        response_format={"type": "json_schema", "json_schema": {"name": "a", "schema": schema}},
        extra_body={"structured_outputs": None},
    )
    assert set(json.loads(answer.choices[0].message.content)) == {"ok"}


def test_a_response_streamed_or_not(openai: OpenAI) -> None:
    ask = {"model": MODEL, "input": "hello", "max_output_tokens": 8, "temperature": 0}
    plain = openai.responses.create(**ask, store=False)
    assert plain.output_text
    events = list(openai.responses.create(**ask, store=False, stream=True))
    assert events[-1].type in ("response.completed", "response.incomplete")
    assert events[-1].response.output_text == plain.output_text


def test_every_shape_of_prompt(openai: OpenAI) -> None:
    for prompt, choices in (("a", 2), (["a", "b"], 4), ([5, 6, 7], 2), ([[5, 6], [7]], 4)):
        answer = openai.completions.create(model=MODEL, prompt=prompt, n=2, max_tokens=2)
        assert [choice.index for choice in answer.choices] == list(range(choices))


def test_echo_repeats_the_prompt(openai: OpenAI) -> None:
    """The engine renders then, because ids alone hold no text."""
    answer = openai.completions.create(model=MODEL, prompt="hello", echo=True, max_tokens=1)
    assert answer.choices[0].text.startswith("hello")


@pytest.mark.parametrize("stream", [False, True])
def test_what_only_the_engine_finds_is_refused_before_any_stream(
    openai: OpenAI, stream: bool
) -> None:
    """A schema that no grammar can be made of passes the ingress, but not the engine."""
    schema = {"type": "object", "properties": {"a": {"type": "no-such-type"}}}
    with pytest.raises(BadRequestError):
        openai.chat.completions.create(
            model=MODEL,
            messages=HI,
            stream=stream,
            response_format={"type": "json_schema", "json_schema": {"name": "a", "schema": schema}},
        )


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_beyond_the_context_is_refused(openai: OpenAI, stream: bool) -> None:
    with pytest.raises(BadRequestError) as refusal:
        openai.completions.create(model=MODEL, prompt="word " * 5000, stream=stream)
    assert refusal.value.code == "context_length_exceeded"


def test_an_unknown_model_is_not_found(openai: OpenAI) -> None:
    with pytest.raises(NotFoundError):
        openai.chat.completions.create(model="gpt-none", messages=HI)


def test_a_client_cannot_replace_the_ids_of_its_own_prompt(url: str) -> None:
    body = {
        "model": MODEL,
        "messages": HI,
        "kv_transfer_params": {"prompt_token_ids": [5] * 100},
    }
    answer = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=30)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "kv_transfer_params")


def test_the_engine_serves_exactly_the_ids_that_tokenize_gives(url: str, openai: OpenAI) -> None:
    ids = httpx.post(f"{url}/tokenize", json={"model": MODEL, "messages": HI}, timeout=30).json()
    answer = openai.chat.completions.create(
        model=MODEL, messages=HI, max_tokens=1, extra_body={"return_token_ids": True}
    )
    assert answer.prompt_token_ids == ids["tokens"]
