"""Replicas that fail: before a first byte the request goes elsewhere, later its stream ends."""

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from openai import APIError, OpenAI

from replicas.engines.sim_faults import FaultKind, SimFault
from tests.serve.sim_app import FAST, App, sim_model

pytestmark = pytest.mark.ray

HI = [{"role": "user", "content": "hi"}]
WITHIN_S = 1.0


def kill_one(app: App, model: str) -> None:
    os.kill(app.replicas(model).pid.remote().result(timeout_s=10), signal.SIGKILL)


def fail_request(app: App, model: str) -> None:
    fault = SimFault(FaultKind.FAIL_REQUEST)
    app.replicas(model).inject.remote(fault).result(timeout_s=10)


def data_of(lines: Iterator[str]) -> Iterator[str]:
    return (line.removeprefix("data: ") for line in lines if line.startswith("data: "))


def stream_then(
    client: httpx.Client, body: dict[str, object], tokens: int, break_it: Callable[[], None]
) -> tuple[list[str], float]:
    """All events of a stream that is broken after `tokens` of them, and the seconds since then."""
    body = {"model": "brittle", "messages": HI, "max_tokens": 200, "stream": True, **body}
    with client.stream("POST", "/v1/chat/completions", json=body) as answer:
        assert answer.status_code == 200
        data = data_of(answer.iter_lines())
        seen = [next(data) for _ in range(tokens)]
        break_it()
        broken_s = time.monotonic()
        seen += data
        return seen, time.monotonic() - broken_s


SCHEMA = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}}}


@pytest.mark.parametrize("breaks", [fail_request, kill_one])
@pytest.mark.parametrize("body", [{}, {"n": 2, "response_format": SCHEMA}], ids=["plain", "json"])
def test_a_failure_in_a_stream_is_one_error_and_the_end(
    app: App, client: httpx.Client, body: dict[str, object], breaks: Callable[..., None]
) -> None:
    """No stop reason, no `[DONE]`, and nothing of the answer twice."""
    seen, took_s = stream_then(client, body, 4, lambda: breaks(app, "brittle"))
    assert took_s < WITHIN_S
    *chunks, last = [json.loads(data) for data in seen]
    assert set(last) == {"error"}
    assert last["error"]["type"] == "server_error"
    assert not any(choice["finish_reason"] for chunk in chunks for choice in chunk["choices"])
    roles = [c["delta"].get("role") for chunk in chunks for c in chunk["choices"]]
    assert roles.count("assistant") <= body.get("n", 1)


def test_the_openai_client_raises_for_a_failure_in_a_stream(app: App, client: httpx.Client) -> None:
    openai = OpenAI(base_url=f"{client.base_url}v1", api_key="none", max_retries=0)
    stream = openai.chat.completions.create(
        model="brittle", messages=HI, stream=True, max_tokens=200
    )
    next(stream)
    fail_request(app, "brittle")
    with pytest.raises(APIError, match="engine"):
        list(stream)


def test_an_engine_failure_before_the_first_byte_is_a_server_error(
    app: App, client: httpx.Client
) -> None:
    fail_request(app, "brittle")
    answer = client.post("/v1/completions", json={"model": "brittle", "prompt": "a"})
    assert answer.status_code == 500
    assert answer.json()["error"]["type"] == "server_error"


def test_a_request_without_a_byte_outlives_the_replica_that_had_it(
    app: App, client: httpx.Client
) -> None:
    """Not streamed, so that no byte is sent while the replica works on it."""
    body = {"model": "brittle", "prompt": "a", "max_tokens": 30}
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(client.post, "/v1/completions", json=body)
        deadline_s = time.monotonic() + 20
        while app.unfinished("brittle") == 0 and time.monotonic() < deadline_s:
            time.sleep(0.02)
        kill_one(app, "brittle")
        assert answer.result().status_code == 200, answer.result().text
        assert answer.result().json()["usage"]["completion_tokens"] == 30


def test_requests_after_a_replica_was_killed_all_succeed(app: App, client: httpx.Client) -> None:
    kill_one(app, "fast")
    body = {"model": "fast", "prompt": "a", "max_tokens": 1}
    assert {client.post("/v1/completions", json=body).status_code for _ in range(30)} == {200}


def test_a_model_without_a_tokenizer_is_served_and_spread(
    deploy: Callable[..., App],
) -> None:
    """The engine renders then; and the model beside it is not touched."""
    app = deploy(
        "unrendered",
        models=[
            sim_model("blind", FAST, replicas=2, source="/nonexistent/model"),
            sim_model("sighted", FAST),
        ],
        ingress={"cpus_per_replica": 0},
    )
    with httpx.Client(base_url=app.url, timeout=30) as client:
        for model in ["sighted", *["blind"] * 20]:
            body = {"model": model, "messages": HI, "max_tokens": 1}
            answer = client.post("/v1/chat/completions", json=body)
            assert answer.status_code == 200, answer.text
        tokenize = client.post("/tokenize", json={"model": "blind", "prompt": "a"})
        assert tokenize.status_code == 400
        cards = {card["id"]: card for card in client.get("/v1/models").json()["data"]}
        assert cards["blind"]["max_model_len"] is None
        assert min(app.served("blind")) > 0
