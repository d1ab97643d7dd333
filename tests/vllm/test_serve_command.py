"""`warmpath serve configs/local.yaml`, as a user has it: two real engines, HAProxy, an unmodified
OpenAI client, and nothing left when it is told to stop.
"""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from openai import OpenAI

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
START_TIMEOUT_S = 400

WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "strict": True,
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Oslo", "Lima"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
BENCH_SERVE = """
from vllm.benchmarks.serve import add_cli_args, main
from vllm.utils.argparse_utils import FlexibleArgumentParser

parser = FlexibleArgumentParser()
add_cli_args(parser)
main(parser.parse_args())
"""
HELLO: Any = [{"role": "user", "content": "Hello"}]


@dataclass(frozen=True, slots=True)
class Served:
    process: subprocess.Popen[bytes]
    url: str
    log: Path


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_until_ready(process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while not re.search(rb"warmpath: ready after", log.read_bytes()):
        if process.poll() is not None or time.monotonic() > deadline:
            lines = log.read_text(errors="replace").splitlines()[-40:]
            pytest.fail("\n".join(line[:300] for line in lines))
        time.sleep(0.5)


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    """At the end it is told to stop, which must leave no process."""
    config = yaml.safe_load((ROOT / "configs" / "local.yaml").read_text())
    port = config["http_options"]["port"] = free_port()
    with tempfile.TemporaryDirectory(prefix="wp-", dir="/tmp") as name:
        path, log = Path(name) / "local.yaml", Path(name) / "log"
        path.write_text(yaml.safe_dump(config))
        ports = ("HAPROXY_STATS", "HAPROXY_METRICS", "FALLBACK_PROXY_HTTP")
        environment = os.environ | {f"RAY_SERVE_{p}_PORT": str(free_port()) for p in ports}
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "serve_app.cli", "serve", str(path)],
                env=environment | {"RAY_TMPDIR": name, "RAY_AUTH_MODE": "disabled"},
                cwd=name,
                stdout=output,
                stderr=output,
            )
        try:
            wait_until_ready(process, log)
            yield Served(process, f"http://127.0.0.1:{port}/v1", log)
            stop(process)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(120)


def stop(process: subprocess.Popen[bytes]) -> None:
    family = psutil.Process(process.pid).children(recursive=True)
    assert any("haproxy" in child.name() for child in family)
    process.send_signal(signal.SIGINT)
    assert process.wait(150) == 0
    _, alive = psutil.wait_procs(family, timeout=20)
    assert alive == []


@pytest.fixture(scope="module")
def client(served: Served) -> Iterator[OpenAI]:
    with OpenAI(base_url=served.url, api_key="none", max_retries=0, timeout=120) as client:
        yield client


def test_chat(client: OpenAI) -> None:
    answer = client.chat.completions.create(
        model="tiny", messages=HELLO, max_tokens=8, logprobs=True, top_logprobs=2
    )
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 8
    assert answer.usage.prompt_tokens_details is not None
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None and logprobs.content is not None
    assert [len(token.top_logprobs) for token in logprobs.content] == [2] * 8


def test_streamed_chat_is_the_unstreamed_one_in_pieces(client: OpenAI) -> None:
    settings: Any = {"model": "tiny", "messages": HELLO, "max_tokens": 12, "temperature": 0}
    whole = client.chat.completions.create(**settings)
    pieces, usage = [], None
    stream = client.chat.completions.create(
        **settings, stream=True, stream_options={"include_usage": True}
    )
    for chunk in stream:
        pieces += [choice.delta.content or "" for choice in chunk.choices]
        usage = chunk.usage or usage
    assert "".join(pieces) == whole.choices[0].message.content
    assert usage is not None and usage.completion_tokens == 12


def test_three_choices_of_one_prompt(client: OpenAI) -> None:
    answer = client.chat.completions.create(
        model="tiny", messages=HELLO, n=3, max_tokens=8, temperature=1.0, seed=1
    )
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert len({choice.message.content for choice in answer.choices}) == 3


def test_named_tool_is_called_with_arguments_of_its_schema(client: OpenAI) -> None:
    """Room for a call of one token a character, and an end after it: the model picks at random."""
    answer = client.chat.completions.create(
        model="tiny",
        messages=HELLO,
        tools=[WEATHER],
        tool_choice={"type": "function", "function": {"name": "get_weather"}},
        max_tokens=200,
        stop=["</tool_call>"],
        extra_body={"include_stop_str_in_output": True},
    )
    calls = answer.choices[0].message.tool_calls
    assert calls is not None
    call: Any = calls[0]
    assert call.function.name == "get_weather"
    assert json.loads(call.function.arguments)["city"] in ("Oslo", "Lima")


def test_structured_output_keeps_to_its_schema(client: OpenAI) -> None:
    schema = {
        "type": "object",
        "properties": {"colour": {"enum": ["red", "green"]}},
        "required": ["colour"],
        "additionalProperties": False,
    }
    form: Any = {"type": "json_schema", "json_schema": {"name": "pick", "schema": schema}}
    answer = client.chat.completions.create(
        model="tiny", messages=HELLO, response_format=form, max_tokens=64
    )
    assert json.loads(answer.choices[0].message.content or "")["colour"] in ("red", "green")


def test_completions_and_responses_and_models(client: OpenAI) -> None:
    completion = client.completions.create(model="tiny", prompt=["a", "b"], max_tokens=4)
    assert [choice.index for choice in completion.choices] == [0, 1]
    response = client.responses.create(
        model="tiny", input="Hello", max_output_tokens=16, store=False
    )
    assert response.usage is not None and response.usage.output_tokens == 16
    assert [model.id for model in client.models.list()] == ["tiny"]


def test_vllms_own_load_generator_finishes(served: Served, tmp_path: Path) -> None:
    """It sends what a client of vLLM sends, and counts a failed request as such."""
    from replicas.engines.vllm.tiny_model import ensure_tiny_model

    # The command `vllm bench serve` itself asks for a distribution called vllm, which the CPU
    # build has not.
    command = [sys.executable, "-c", BENCH_SERVE]
    options = {
        "backend": "openai-chat",
        "endpoint": "/v1/chat/completions",
        "base-url": served.url.removesuffix("/v1"),
        "model": "tiny",
        "tokenizer": str(ensure_tiny_model()),
        "dataset-name": "random",
        "random-input-len": "64",
        "random-output-len": "16",
        "num-prompts": "8",
        "max-concurrency": "4",
        "result-dir": str(tmp_path),
        "result-filename": "result.json",
    }
    words = [word for name, value in options.items() for word in (f"--{name}", value)]
    done = subprocess.run(
        [*command, *words, "--save-result"], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-3000:]
    result = json.loads((tmp_path / "result.json").read_text())
    assert (result["completed"], result["failed"]) == (8, 0)
