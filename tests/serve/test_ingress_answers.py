"""What a client gets back when all is well, through real Serve hops and simulated replicas."""

import json

import httpx
import pytest
from openai import OpenAI

pytestmark = pytest.mark.ray

HI = [{"role": "user", "content": "hi"}]


def events(text: str) -> list[str]:
    """The data of each server-sent event."""
    return [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]


def parts(text: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text}]


@pytest.mark.parametrize("role", ["system", "user", "assistant", "tool"])
def test_a_list_of_text_parts_is_served_like_the_same_text(client: httpx.Client, role: str) -> None:
    def usage(content: object) -> dict[str, int]:
        extra = {"tool_call_id": "call-1"} if role == "tool" else {}
        messages = [*HI, {"role": role, "content": content, **extra}, *HI]
        answer = client.post(
            "/v1/chat/completions", json={"model": "fast", "messages": messages, "max_tokens": 2}
        )
        assert answer.status_code == 200, answer.text
        return answer.json()["usage"]

    assert usage(parts("some words"))["prompt_tokens"] == usage("some words")["prompt_tokens"]


SHAPES = ["a", ["a", "b"], [1, 2, 3], [[1, 2], [3]]]


@pytest.mark.parametrize("prompt", SHAPES)
@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("stream", [False, True])
def test_every_shape_of_prompt_is_answered_in_order(
    client: httpx.Client, prompt: object, n: int, stream: bool
) -> None:
    body = {"model": "fast", "prompt": prompt, "n": n, "stream": stream, "max_tokens": 3}
    answer = client.post("/v1/completions", json=body)
    assert answer.status_code == 200, answer.text
    prompts = len(prompt) if isinstance(prompt[0], str | list) and len(prompt) > 1 else 1
    if stream:
        *chunks, done = events(answer.text)
        assert done == "[DONE]"
        seen = {choice["index"] for chunk in chunks for choice in json.loads(chunk)["choices"]}
        assert seen == set(range(prompts * n))
    else:
        indices = [choice["index"] for choice in answer.json()["choices"]]
        assert indices == list(range(prompts * n))


def test_choices_of_a_list_of_prompts_stand_at_prompt_times_n(client: httpx.Client) -> None:
    def texts(prompt: object) -> list[str]:
        body = {"model": "fast", "prompt": prompt, "n": 2, "seed": 7, "max_tokens": 4}
        return [
            choice["text"] for choice in client.post("/v1/completions", json=body).json()["choices"]
        ]

    assert texts([[5, 6], [7]]) == texts([5, 6]) + texts([7])


def test_token_ids_reach_the_engine_as_they_are(client: httpx.Client) -> None:
    body = {"model": "fast", "prompt": [3, 1, 4, 1, 5], "max_tokens": 1}
    assert client.post("/v1/completions", json=body).json()["usage"]["prompt_tokens"] == 5


def test_cached_tokens_are_reported_streamed_or_not(client: httpx.Client) -> None:
    prompt = list(range(100, 197))  # 3 blocks of 32 and one token

    def cached(stream: bool) -> int:
        body = {"model": "slow", "prompt": prompt, "max_tokens": 1, "stream": stream}
        if not stream:
            usage = client.post("/v1/completions", json=body).json()["usage"]
        else:
            body["stream_options"] = {"include_usage": True}
            usage = json.loads(events(client.post("/v1/completions", json=body).text)[-2])["usage"]
        return usage["prompt_tokens_details"]["cached_tokens"]

    assert [cached(False), cached(False), cached(True)] == [0, 96, 96]


def test_the_first_streamed_chunk_names_the_role_and_the_last_event_is_done(
    client: httpx.Client,
) -> None:
    body = {"model": "fast", "messages": HI, "stream": True, "max_tokens": 2}
    answer = client.post("/v1/chat/completions", json=body)
    assert answer.headers["content-type"].startswith("text/event-stream")
    first, *_, done = events(answer.text)
    assert json.loads(first)["choices"][0]["delta"]["role"] == "assistant"
    assert done == "[DONE]"


def test_an_unmodified_openai_client_is_served(client: httpx.Client) -> None:
    openai = OpenAI(base_url=f"{client.base_url}v1", api_key="none")
    chat = openai.chat.completions.create(model="fast", messages=HI, n=3, max_tokens=4)
    assert [choice.index for choice in chat.choices] == [0, 1, 2]
    streamed = openai.chat.completions.create(model="fast", messages=HI, stream=True, max_tokens=4)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in streamed)
    response = openai.responses.create(model="fast", input="hi", store=False)
    assert response.output_text


def test_responses_are_never_stored(client: httpx.Client) -> None:
    served = client.post("/v1/responses", json={"model": "fast", "input": "hi"})
    assert served.status_code == 200
    refused = client.post("/v1/responses", json={"model": "fast", "input": "hi", "store": True})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "store")


def test_models_are_listed_without_asking_a_replica(client: httpx.Client) -> None:
    listed = client.get("/v1/models").json()
    assert [card["id"] for card in listed["data"]] == ["fast", "slow", "tight", "brittle", "long"]
    assert client.get("/v1/models/slow").json()["max_model_len"] == 32768
    assert client.get("/v1/models/nope").json()["error"]["code"] == "model_not_found"


def test_tokenize_gives_the_ids_that_a_prompt_would_have(client: httpx.Client) -> None:
    ids = client.post("/tokenize", json={"model": "fast", "messages": HI}).json()["tokens"]
    chat = client.post(
        "/v1/chat/completions", json={"model": "fast", "messages": HI, "max_tokens": 1}
    )
    assert chat.json()["usage"]["prompt_tokens"] == len(ids) > 0


def test_a_request_id_is_echoed_or_made(client: httpx.Client) -> None:
    echoed = client.get("/health", headers={"X-Request-Id": "my-id-1"})
    assert echoed.headers["x-request-id"] == "my-id-1"
    assert client.get("/health").headers["x-request-id"]


def test_two_requests_with_one_request_id_are_both_served(client: httpx.Client) -> None:
    """The client's id is for its own logs; the engine's must be unique."""
    body = {"model": "fast", "prompt": "a", "max_tokens": 1}
    answers = [
        client.post("/v1/completions", json=body, headers={"X-Request-Id": "same"}) for _ in "ab"
    ]
    assert answers[0].json()["id"] != answers[1].json()["id"]


def test_many_tokens_are_delivered_beyond_the_limit_of_a_grpc_message(
    client: httpx.Client,
) -> None:
    """A body of 3.5 MB and its ids are more than Serve's gRPC handles take in one message."""
    body = {"model": "fast", "prompt": ["x " * 1700] * 1000, "max_tokens": 1}
    answer = client.post("/v1/completions", json=body)
    assert answer.status_code == 200, answer.text
    assert len(answer.json()["choices"]) == 1000
