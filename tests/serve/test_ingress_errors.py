"""What a client gets back when it is at fault: a short 4xx in OpenAI's shape, before any stream."""

import json

import httpx
import pytest

pytestmark = pytest.mark.ray

HI = [{"role": "user", "content": "hi"}]
SECRET_TEXT = "correct-horse-battery"
CHAT, COMPLETIONS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"


def refusal(answer: httpx.Response) -> dict[str, object]:
    """The error object of an answer that is small, well formed and quotes nobody."""
    assert answer.headers["content-type"] == "application/json"
    assert len(answer.content) < 16_000
    assert SECRET_TEXT not in answer.text
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    return error


MALFORMED = {
    "schema-without-object": {"messages": HI, "response_format": {"type": "json_schema"}},
    "tools-a-number": {"messages": HI, "tools": 5},
    "messages-a-text": {"messages": SECRET_TEXT},
    "tool-calls-a-number": {"messages": [{"role": "assistant", "tool_calls": 3}]},
    "message-a-text": {"messages": [SECRET_TEXT]},
    "content-an-object": {"messages": [{"role": "user", "content": {"a": SECRET_TEXT}}]},
    "temperature-a-text": {"messages": HI, "temperature": SECRET_TEXT},
    "logit-bias-of-text": {"messages": HI, "logit_bias": {SECRET_TEXT: 1}},
    "structured-outputs-a-number": {"messages": HI, "structured_outputs": 5},
    "structured-outputs-unknown": {"messages": HI, "structured_outputs": {"x": SECRET_TEXT}},
    "stream-a-text": {"messages": HI, "stream": SECRET_TEXT},
    "stream-options-without-stream": {"messages": HI, "stream_options": {"include_usage": True}},
    "many-malformed-messages": {"messages": [{"role": SECRET_TEXT * 50}] * 2000},
    "too-many-messages": {"messages": HI * 5000},
    "no-messages-key": {},
}


@pytest.mark.parametrize("case", MALFORMED)
def test_a_malformed_chat_is_refused_shortly(client: httpx.Client, case: str) -> None:
    answer = client.post(CHAT, json={"model": "fast", **MALFORMED[case]})
    assert answer.status_code == 400
    assert refusal(answer)["type"] == "invalid_request_error"


@pytest.mark.parametrize("raw", [b"[]", b"hello", b"", b'"x"', b"null", b"[" * 100_000, b"\xff{"])
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, RESPONSES, "/tokenize"])
def test_a_body_that_is_no_object_is_refused(client: httpx.Client, path: str, raw: bytes) -> None:
    answer = client.post(path, content=raw)
    assert answer.status_code == 400
    assert refusal(answer)["code"] == "invalid_json"


EMPTY = {
    "empty-text": (COMPLETIONS, {"prompt": ""}),
    "empty-list": (COMPLETIONS, {"prompt": []}),
    "list-of-empty-ids": (COMPLETIONS, {"prompt": [[]]}),
    "no-messages": (CHAT, {"messages": []}),
    "no-input": (RESPONSES, {"input": []}),
}


@pytest.mark.parametrize("case", EMPTY)
def test_an_empty_prompt_is_refused_and_harms_nobody(client: httpx.Client, case: str) -> None:
    path, body = EMPTY[case]
    assert client.post(path, json={"model": "fast", **body}).status_code == 400
    after = client.post(CHAT, json={"model": "fast", "messages": HI, "max_tokens": 1})
    assert after.status_code == 200


def test_empty_texts_are_served_where_the_tokenizer_gives_them_tokens(client: httpx.Client) -> None:
    for path, body in (
        (COMPLETIONS, {"prompt": [""]}),
        (CHAT, {"messages": [{"role": "user", "content": ""}]}),
    ):
        assert client.post(path, json={"model": "fast", **body}).status_code == 200


TOO_LONG = {
    "text": (COMPLETIONS, {"prompt": "word " * 60_000}),
    "ids": (COMPLETIONS, {"prompt": [7] * 40_000}),
    "chat": (CHAT, {"messages": [{"role": "user", "content": "word " * 60_000}]}),
    "input": (RESPONSES, {"input": "word " * 60_000}),
    "with-answer": (COMPLETIONS, {"prompt": [7] * 100, "max_tokens": 32_700}),
    "chat-with-answer": (CHAT, {"messages": HI, "max_completion_tokens": 32_768}),
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("case", TOO_LONG)
def test_a_prompt_beyond_the_context_is_refused_before_any_stream(
    client: httpx.Client, case: str, stream: bool
) -> None:
    path, body = TOO_LONG[case]
    answer = client.post(path, json={"model": "fast", "stream": stream, **body})
    assert answer.status_code == 400
    assert refusal(answer)["code"] == "context_length_exceeded"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "field", [{"n": 0}, {"max_tokens": 0}, {"temperature": -1}, {"top_p": 3}, {"logprobs": -7}]
)
def test_a_value_out_of_range_is_refused_before_any_stream(
    client: httpx.Client, stream: bool, field: dict[str, object]
) -> None:
    answer = client.post(
        COMPLETIONS, json={"model": "fast", "prompt": "hi", "stream": stream, **field}
    )
    assert answer.status_code == 400
    refusal(answer)


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, RESPONSES, "/tokenize"])
def test_an_unknown_model_is_not_found(client: httpx.Client, path: str) -> None:
    answer = client.post(path, json={"model": SECRET_TEXT, "messages": HI, "prompt": "a"})
    assert answer.status_code == 404
    assert refusal(answer)["code"] == "model_not_found"


def test_no_model_among_several_is_refused(client: httpx.Client) -> None:
    answer = client.post(CHAT, json={"messages": HI})
    assert (answer.status_code, refusal(answer)["param"]) == (400, "model")


def test_a_body_beyond_the_limit_is_refused_unread(client: httpx.Client) -> None:
    body = {"model": "fast", "prompt": "x" * (4 * 1024 * 1024)}
    answer = client.post(COMPLETIONS, json=body)
    assert answer.status_code == 413
    assert refusal(answer)["code"] == "payload_too_large"


def test_a_chunked_body_beyond_the_limit_is_refused(client: httpx.Client) -> None:
    """No length is announced here, so that only counting helps."""
    answer = client.post(COMPLETIONS, content=(b"x" * 65_536 for _ in range(80)))
    assert answer.status_code == 413


STEERING = {
    "kv_transfer_params": {"prompt_token_ids": [1, 2, 3]},
    "ec_transfer_params": {"a": 1},
    "vllm_xargs": {"kv_transfer_params": 1},
    "priority": -5,
    "chat_template": "{{ messages }}",
    "chat_template_kwargs": {"chat_template": "x"},
    "mm_processor_kwargs": {"a": 1},
    "media_io_kwargs": {"image": {}},
    "cache_salt": "",
}


@pytest.mark.parametrize("field", STEERING)
def test_a_field_that_steers_the_engine_is_refused(client: httpx.Client, field: str) -> None:
    answer = client.post(CHAT, json={"model": "fast", "messages": HI, field: STEERING[field]})
    assert (answer.status_code, refusal(answer)["param"]) == (400, field)


MEDIA = [
    {"type": "image_url", "image_url": {"url": "http://169.254.169.254/latest"}},
    {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
    {"type": "audio_url", "audio_url": {"url": "file:///etc/passwd"}},
    {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
    {"image_url": "http://169.254.169.254/latest"},
    {"type": "text", "text": "hi", "image_url": "http://169.254.169.254/latest", "uuid": "1"},
    {"type": "prompt_embeds", "data": "AAAA"},
    {"type": ["image_url"], "image_url": {"url": "http://169.254.169.254/"}},
]


@pytest.mark.parametrize("part", MEDIA, ids=json.dumps)
def test_media_are_refused_where_the_model_takes_text_only(
    client: httpx.Client, part: dict[str, object]
) -> None:
    """The last of several parts must not slip through behind a harmless first one."""
    content = [{"type": "text", "text": "look"}, part]
    body = {"model": "fast", "messages": [{"role": "user", "content": content}]}
    answer = client.post(CHAT, json=body)
    assert (answer.status_code, refusal(answer)["param"]) == (400, "messages")


@pytest.mark.parametrize(
    "field",
    [
        {"previous_response_id": "resp_1"},
        {"background": True},
        {"tools": [{"type": "mcp", "server_label": "a", "server_url": "http://10.0.0.1"}]},
        {"tools": [{"type": "web_search"}]},
        {"input": [{"type": "item_reference", "id": "msg_1"}]},
        {"prompt": {"id": "pmpt_1"}},
    ],
    ids=json.dumps,
)
def test_what_responses_would_have_to_store_or_fetch_is_refused(
    client: httpx.Client, field: dict[str, object]
) -> None:
    answer = client.post(RESPONSES, json={"model": "fast", "input": "hi", **field})
    assert answer.status_code == 400
    refusal(answer)


def test_unknown_fields_are_ignored_as_openai_ignores_them(client: httpx.Client) -> None:
    body = {"model": "fast", "messages": HI, "made_up": 1, "max_tokens": 1, "session_id": "s"}
    assert client.post(CHAT, json=body).status_code == 200


@pytest.mark.parametrize("path", ["/docs", "/openapi.json", "/redoc", "/v2", "/metrics"])
def test_a_path_that_is_not_served_is_not_found(client: httpx.Client, path: str) -> None:
    answer = client.get(path)
    assert answer.status_code == 404
    refusal(answer)


def test_a_wrong_method_is_refused_in_the_same_shape(client: httpx.Client) -> None:
    answer = client.get(CHAT)
    assert answer.status_code == 405
    refusal(answer)


@pytest.mark.parametrize("request_id", ["a b", "x" * 129, "a/b", ""])
def test_a_request_id_outside_its_alphabet_is_refused(
    client: httpx.Client, request_id: str
) -> None:
    answer = client.get("/health", headers={"X-Request-Id": request_id})
    assert answer.status_code == 400


def test_a_client_cannot_ask_to_be_served_after_it_has_gone(client: httpx.Client) -> None:
    headers = {"x-request-disconnect-disabled": "?1"}
    assert client.post(CHAT, json={"model": "fast"}, headers=headers).status_code == 400
