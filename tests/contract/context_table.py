"""The table of the contract for contexts, call by call, whatever engines are behind it.

Imported by the tests that start an application; those give `ann` and `bob`, callers of one model
whose name is theirs, `contexts_http`, and that model's `max_model_len`.
"""

import time
from typing import Any

import httpx
import pytest

from tests.serve.context_calls import STREAMED, WHOLE, Caller, fault, plain, usage_of, user

FIELDS = {
    "id",
    "object",
    "kind",
    "model",
    "created_at",
    "last_used_at",
    "expires_at",
    "ttl",
    "turns",
    "tokens",
    "metadata",
    "usage",
    "cache",
}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


# --- creation -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("prompt", {"prompt": "once upon a time"}),
        ("prompt", {"prompt": [5, 6, 7]}),
        ("chat", {"messages": [user("hi")]}),
        ("chat", {"messages": [user("hi")], "tools": [TOOL], "chat_template_kwargs": {"a": 1}}),
    ],
)
def test_a_context_is_made_of_a_prompt_or_of_messages(
    ann: Caller, kind: str, body: dict[str, Any]
) -> None:
    before = int(time.time())
    answer = ann.create(**body, metadata={"project": "x"})
    context = answer.json()
    assert (answer.status_code, answer.headers["x-session-id"]) == (201, context["id"])
    assert context.keys() == FIELDS
    assert context["id"].startswith("ctx-") and len(context["id"]) >= 4 + 22
    assert (context["object"], context["kind"], context["model"]) == ("context", kind, ann.model)
    assert (context["turns"], context["ttl"], context["metadata"]) == (0, 3600, {"project": "x"})
    assert before <= context["created_at"] == context["last_used_at"] <= time.time()
    assert context["expires_at"] == context["created_at"] + 3600
    usage = context["usage"]
    assert usage["completion_tokens"] == 0
    assert usage["prompt_tokens"] == usage["total_tokens"] == context["tokens"] > 0
    assert context["cache"].keys() == {"stored_tokens", "stored_bytes"}
    assert ann.get(context["id"]) == context


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "prompt"),
        ({"prompt": "a", "messages": [user("hi")]}, "prompt"),
        ({"prompt": ["a", "b"]}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"messages": "hi"}, "messages"),
        ({"prompt": "a", "ttl": 0}, "ttl"),
        ({"prompt": "a", "ttl": 604_801}, "ttl"),
        ({"prompt": "a", "ttl": 1.5}, "ttl"),
        ({"prompt": "a", "ttl": "60"}, "ttl"),
        ({"prompt": "a", "ttl": 60, "headers": {"x-session-ttl": "61"}}, "ttl"),
        ({"prompt": "a", "headers": {"x-session-ttl": "soon"}}, "x-session-ttl"),
        ({"prompt": "a", "metadata": {"k": 1}}, "metadata"),
        ({"prompt": "a", "metadata": {f"k{i}": "" for i in range(17)}}, "metadata"),
        ({"prompt": "a", "model": "none"}, "model"),
    ],
)
def test_what_makes_no_context_is_refused(ann: Caller, body: dict[str, Any], param: str) -> None:
    answer = ann.create(**body)
    status, _ = fault(answer)
    assert (status, answer.json()["error"]["param"]) == (404 if param == "model" else 400, param)


def test_a_ttl_may_stand_in_a_header(ann: Caller) -> None:
    assert ann.create(prompt="a", headers={"x-session-ttl": "77"}).json()["ttl"] == 77
    assert ann.create(prompt="a", ttl=77, headers={"x-session-ttl": "77"}).json()["ttl"] == 77


def test_a_prompt_too_long_for_the_model_makes_no_context(ann: Caller, max_model_len: int) -> None:
    for tokens in (max_model_len, max_model_len + 1, 3 * max_model_len):
        assert fault(ann.create(prompt=[5] * tokens)) == (400, "context_length_exceeded")


# --- looking, listing, changing, forking, deleting ----------------------------------------------


def test_a_tenant_pages_through_its_own_contexts_newest_first(bob: Caller, ann: Caller) -> None:
    ann.created(prompt="of ann")
    made = [bob.created(prompt=f"{number}") for number in range(5)]
    first = bob.call("GET", params={"limit": 3}).json()
    assert (first["object"], first["has_more"]) == ("list", True)
    assert [context["id"] for context in first["data"]] == made[:1:-1]
    second = bob.call("GET", params={"limit": 2, "after": first["last_id"]}).json()
    assert [context["id"] for context in second["data"]] == made[1::-1]
    for query in ({"limit": 0}, {"limit": 101}, {"limit": "many"}):
        assert fault(bob.call("GET", params=query))[0] == 400


def test_ttl_and_metadata_change_and_the_idle_clock_starts_again(ann: Caller) -> None:
    name = ann.created(prompt="a", ttl=100, metadata={"a": "b"})
    changed = ann.call("PATCH", f"/{name}", json={"ttl": 500, "metadata": {"c": "d"}})
    assert changed.status_code == 200
    context = changed.json()
    assert (context["ttl"], context["metadata"]) == (500, {"c": "d"})
    assert context["expires_at"] == context["last_used_at"] + 500
    assert ann.call("PATCH", f"/{name}", json={}).json()["ttl"] == 500
    assert fault(ann.call("PATCH", f"/{name}", json={"ttl": 0}))[0] == 400


def test_a_fork_goes_its_own_way(ann: Caller) -> None:
    name = ann.created(messages=[user("hi")], ttl=100, metadata={"a": "b"})
    assert ann.chat(name, "first").status_code == 200
    answer = ann.call("POST", f"/{name}/fork", json={"ttl": 50})
    fork = answer.json()
    parent = ann.get(name)
    assert (answer.status_code, answer.headers["x-session-id"]) == (201, fork["id"])
    assert fork["id"] != name
    assert (fork["tokens"], fork["turns"]) == (parent["tokens"], parent["turns"])
    assert (fork["ttl"], fork["metadata"]) == (50, {"a": "b"})
    assert fork["usage"]["completion_tokens"] == 0
    one, other = ann.chat(name, "again"), ann.chat(fork["id"], "again")
    assert one.json()["choices"][0]["message"] == other.json()["choices"][0]["message"]
    ann.chat(fork["id"], "more")
    assert (ann.get(name)["turns"], ann.get(fork["id"])["turns"]) == (2, 3)


def test_a_fork_without_a_body_takes_after_its_parent(ann: Caller) -> None:
    name = ann.created(prompt="a", ttl=100, metadata={"a": "b"})
    fork = ann.call("POST", f"/{name}/fork").json()
    assert (fork["ttl"], fork["metadata"]) == (100, {"a": "b"})


def test_a_deleted_context_is_not_there(ann: Caller) -> None:
    name = ann.created(prompt="a")
    deleted = ann.call("DELETE", f"/{name}")
    assert (deleted.status_code, deleted.json()) == (
        200,
        {"id": name, "object": "context.deleted", "deleted": True},
    )
    for again in (
        ann.call("DELETE", f"/{name}"),
        ann.call("GET", f"/{name}"),
        ann.call("PATCH", f"/{name}", json={}),
        ann.call("POST", f"/{name}/fork"),
        ann.complete(name, "b"),
    ):
        assert fault(again) == (404, "context_not_found")


def test_an_expired_context_is_gone_for_its_owner_and_unknown_to_others(
    ann: Caller, bob: Caller
) -> None:
    name = ann.created(prompt="a", ttl=1)
    time.sleep(1.2)
    assert fault(ann.call("GET", f"/{name}")) == (410, "context_expired")
    assert fault(ann.complete(name, "b")) == (410, "context_expired")
    assert fault(bob.call("GET", f"/{name}")) == (404, "context_not_found")


# --- turns --------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", [WHOLE, STREAMED], ids=["whole", "streamed"])
def test_a_chat_goes_on_turn_by_turn(ann: Caller, how: dict[str, Any]) -> None:
    name = ann.created(messages=[{"role": "system", "content": "be brief " * 30}])
    tokens = ann.get(name)["tokens"]
    for number in range(1, 4):
        answer = ann.chat(name, "tell me more", **how)
        assert answer.status_code == 200, answer.text
        usage = usage_of(answer)
        assert usage["prompt_tokens"] > tokens
        assert usage["completion_tokens"] == 4
        context = ann.get(name)
        assert (context["turns"], context["usage"]) == (number, plain(usage))
        tokens = context["tokens"]
        assert tokens == usage["prompt_tokens"] + 4
        if number > 1:
            assert usage["prompt_tokens_details"]["cached_tokens"] > 0


@pytest.mark.parametrize("how", [WHOLE, STREAMED], ids=["whole", "streamed"])
def test_a_text_goes_on_like_the_same_ids_in_one_prompt(ann: Caller, how: dict[str, Any]) -> None:
    prompt = list(range(300, 340))
    name, known = ann.created(prompt=prompt[:30]), ann.created(prompt=prompt)
    assert ann.complete(name, prompt[30:], max_tokens=12, **how).status_code == 200
    assert ann.complete(known, [301], max_tokens=1).json()["usage"]["prompt_tokens"] == 41
    assert ann.get(name)["tokens"] == 52
    fork = ann.call("POST", f"/{name}/fork").json()["id"]
    one, other = (ann.complete(context, [302, 303]).json() for context in (name, fork))
    assert one["choices"] == other["choices"]
    assert one["usage"]["prompt_tokens"] == 54


def test_nothing_from_a_stop_string_on_is_kept(ann: Caller) -> None:
    name = ann.created(prompt=list(range(300, 330)))
    fork = ann.call("POST", f"/{name}/fork").json()["id"]
    text = ann.complete(name, [301], max_tokens=12).json()["choices"][0]["text"]
    stop = text[len(text) // 2 :][:3]
    (choice,) = ann.complete(fork, [301], max_tokens=12, stop=stop).json()["choices"]
    assert (choice["text"], choice["finish_reason"]) == (text[: text.index(stop)], "stop")
    assert 31 < ann.get(fork)["tokens"] < ann.get(name)["tokens"]


@pytest.mark.parametrize(
    ("route", "body"),
    [
        ("chat", {"n": 2}),
        ("chat", {"best_of": 2}),
        ("chat", {"echo": True}),
        ("chat", {"messages": []}),
        ("complete", {"n": 2}),
        ("complete", {"best_of": 2}),
        ("complete", {"echo": True}),
        ("complete", {"prompt": ["a", "b"]}),
        ("complete", {"prompt": [[1], [2]]}),
        ("complete", {"suffix": "s"}),
    ],
)
def test_what_no_turn_may_ask_for_is_refused(ann: Caller, route: str, body: Any) -> None:
    if route == "chat":
        name = ann.created(messages=[user("hi")])
        answer = ann.chat(name, "a", **body)
    else:
        name = ann.created(prompt="a")
        answer = ann.complete(name, **({"prompt": "a"} | body))
    assert fault(answer)[0] == 400
    assert ann.get(name)["turns"] == 0


def test_kind_and_tools_stay_as_they_were(ann: Caller) -> None:
    text, chat = ann.created(prompt="a"), ann.created(messages=[user("hi")], tools=[TOOL])
    assert fault(ann.chat(text, "a")) == (400, "context_kind")
    assert fault(ann.complete(chat, "a")) == (400, "context_kind")
    assert fault(ann.chat(chat, "a", tools=[])) == (400, "tools_changed")
    assert ann.chat(chat, "a").status_code == ann.chat(chat, "a", tools=[TOOL]).status_code == 200


def test_a_context_has_no_turn_of_the_responses_call(ann: Caller) -> None:
    name = ann.created(messages=[user("hi")])
    answer = ann.turn("/v1/responses", name, {"input": "a"})
    assert fault(answer)[0] == 400
    assert "/v1/chat/completions" in answer.json()["error"]["message"]


def test_too_long_a_turn_is_refused_and_nothing_is_cut(ann: Caller, max_model_len: int) -> None:
    name = ann.created(prompt=[5] * (max_model_len - 60))
    for tokens, max_tokens in ((100, 4), (60, 4), (10, 60)):
        refused = ann.complete(name, [6] * tokens, max_tokens=max_tokens)
        assert fault(refused) == (400, "context_length_exceeded")
    assert ann.get(name)["tokens"] == max_model_len - 60
    assert ann.complete(name, [6] * 10, max_tokens=50).status_code == 200


def test_any_other_session_id_is_a_hint_and_never_an_error(ann: Caller) -> None:
    for session in ("abc", "CTX-abc", "ctx", "a" * 3000, "{}"):
        answer = ann.complete(session, "a")
        assert answer.status_code == 200, session


@pytest.mark.parametrize("name", ["ctx-", "ctx-abc", "ctx-" + "a" * 200, "ctx-%2e%2e"])
def test_an_id_that_never_was_is_not_found(ann: Caller, name: str) -> None:
    assert fault(ann.complete(name, "a")) == (404, "context_not_found")
    if name != "ctx-":
        assert fault(ann.call("GET", f"/{name}")) == (404, "context_not_found")


def test_an_openai_client_uses_contexts_through_extra_headers(
    ann: Caller, contexts_http: httpx.Client
) -> None:
    from openai import OpenAI

    openai = OpenAI(base_url=f"{str(contexts_http.base_url).rstrip('/')}/v1", api_key="key-of-ann")
    made = openai.post(
        "/context", body={"model": ann.model, "messages": [user("hi")]}, cast_to=httpx.Response
    )
    headers = {"x-session-id": made.headers["x-session-id"]}
    ask = openai.chat.completions.create
    options: Any = {"model": ann.model, "max_tokens": 4, "extra_headers": headers}
    chat = ask(messages=[{"role": "user", "content": "a"}], **options)
    assert chat.choices[0].message.content
    streamed = ask(messages=[{"role": "user", "content": "b"}], stream=True, **options)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in streamed)
    assert ann.get(headers["x-session-id"])["turns"] == 2
