"""Turns that meet, break off, are repeated, or come from strangers."""

import asyncio
import json
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
import ray

from replicas.engines.sim_faults import FaultKind, SimFault
from tests.serve.context_calls import QUOTA, STREAMED, WHOLE, Caller, events, fault, user
from tests.serve.sim_app import App

pytestmark = pytest.mark.ray

LONG: dict[str, Any] = {"max_tokens": 60}
FREE_WITHIN_S = 5.0


def until(condition: Callable[[], bool], within_s: float = FREE_WITHIN_S) -> None:
    deadline_s = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline_s, "it did not happen in time"
        time.sleep(0.05)


def is_busy(caller: Caller, name: str) -> bool:
    return caller.get(name)["expires_at"] is None


def leave_after_the_first_event(caller: Caller, name: str) -> str:
    """What the client saw of a turn that it broke off."""
    headers, body = caller.turn_request(name, {"prompt": "go on"} | LONG | STREAMED)
    with caller.http.stream("POST", "/v1/completions", json=body, headers=headers) as answer:
        lines = answer.iter_lines()
        first = next(line for line in lines if line.startswith("data: "))
        assert is_busy(caller, name)
    return first


# --- meeting ------------------------------------------------------------------------------------


def test_of_two_racing_turns_one_is_told_that_the_context_is_busy(slow: Caller) -> None:
    name = slow.created(prompt="a")
    with ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(lambda _: slow.complete(name, "b", max_tokens=10), range(2)))
    refused = next(answer for answer in answers if answer.status_code != 200)
    assert fault(refused) == (409, "context_busy")
    assert int(refused.headers["retry-after"]) >= 1
    assert slow.get(name)["turns"] == 1


def test_a_turn_may_wait_for_another(slow: Caller) -> None:
    name = slow.created(prompt="a")
    waiting = {"headers": {"x-session-wait": "20"}}
    with ThreadPoolExecutor(3) as pool:
        answers = list(
            pool.map(lambda _: slow.complete(name, "b", max_tokens=5, **waiting), range(3))
        )
    assert [answer.status_code for answer in answers] == [200] * 3
    lengths = sorted(answer.json()["usage"]["prompt_tokens"] for answer in answers)
    assert len(set(lengths)) == 3
    assert slow.get(name)["turns"] == 3


def test_it_waits_no_longer_than_it_says(slow: Caller) -> None:
    name = slow.created(prompt="a")
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(slow.complete, name, "b", max_tokens=40)
        until(lambda: is_busy(slow, name))
        begun_s = time.monotonic()
        late = slow.complete(name, "c", headers={"x-session-wait": "1"})
        assert fault(late) == (409, "context_busy")
        assert 0.9 < time.monotonic() - begun_s < 3.5
        assert running.result().status_code == 200


def test_an_impossible_wait_is_refused(ann: Caller) -> None:
    name = ann.created(prompt="a")
    for wait in ("-1", "soon", "3601"):
        assert fault(ann.complete(name, "b", headers={"x-session-wait": wait}))[0] == 400


def test_during_a_turn_a_context_is_looked_at_changed_and_forked_but_not_deleted(
    slow: Caller,
) -> None:
    name = slow.created(prompt="a")
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(slow.complete, name, "b", max_tokens=20)
        until(lambda: is_busy(slow, name))
        assert slow.call("PATCH", f"/{name}", json={"ttl": 99}).json()["ttl"] == 99
        fork = slow.call("POST", f"/{name}/fork").json()
        assert (fork["turns"], fork["expires_at"] is None) == (0, False)
        assert fault(slow.call("DELETE", f"/{name}")) == (409, "context_busy")
        assert running.result().status_code == 200
    after = slow.get(name)
    assert (after["turns"], after["ttl"]) == (1, 99)
    assert slow.call("DELETE", f"/{name}").status_code == 200


def test_a_turn_longer_than_the_ttl_does_not_expire_its_own_context(slow: Caller) -> None:
    name = slow.created(prompt="a", ttl=1)
    assert slow.complete(name, "b", max_tokens=20).status_code == 200
    assert slow.get(name)["turns"] == 1


# --- repeating ----------------------------------------------------------------------------------


@pytest.mark.parametrize("how", [WHOLE, STREAMED], ids=["whole", "streamed"])
def test_a_turn_whose_answer_was_lost_is_repeated_safely(ann: Caller, how: dict[str, Any]) -> None:
    """The client does not know whether its turn was committed: the number of turns tells."""
    name = ann.created(messages=[user("hi")])
    turn: Any = {"headers": {"x-session-turn": "0"}} | how
    assert ann.chat(name, "a", **turn).status_code == 200
    again = ann.chat(name, "a", **turn)
    assert fault(again) == (409, "turn_conflict")
    assert ann.get(name)["turns"] == 1
    assert ann.chat(name, "b", headers={"x-session-turn": "1"}).status_code == 200
    assert fault(ann.chat(name, "b", headers={"x-session-turn": "7"})) == (409, "turn_conflict")
    assert fault(ann.chat(name, "b", headers={"x-session-turn": "one"}))[0] == 400


# --- breaking off -------------------------------------------------------------------------------


def test_a_client_that_leaves_mid_turn_leaves_the_last_committed_state(slow: Caller) -> None:
    """Turn 0 done, turn 1 broken off after a chunk, turn 2 at once."""
    name = slow.created(prompt=list(range(100, 140)))
    assert slow.complete(name, [7]).status_code == 200
    before = slow.get(name)
    leave_after_the_first_event(slow, name)
    begun_s = time.monotonic()
    until(lambda: not is_busy(slow, name))
    assert time.monotonic() - begun_s < FREE_WITHIN_S
    after = slow.get(name)
    assert (after["turns"], after["tokens"], after["usage"]) == (
        before["turns"],
        before["tokens"],
        before["usage"],
    )
    answer = slow.complete(name, [8])
    assert answer.status_code == 200
    assert answer.json()["usage"]["prompt_tokens"] == before["tokens"] + 1


def test_a_client_that_leaves_before_a_whole_answer_frees_the_context(
    slow: Caller, contexts_app: App
) -> None:
    name = slow.created(prompt="a")
    headers, body = slow.turn_request(name, {"prompt": "b"} | LONG)

    async def ask_and_leave() -> None:
        async with httpx.AsyncClient(base_url=contexts_app.url, timeout=60) as client:
            asking = asyncio.create_task(client.post("/v1/completions", json=body, headers=headers))
            await asyncio.to_thread(until, lambda: is_busy(slow, name))
            asking.cancel()
            with suppress(asyncio.CancelledError, httpx.HTTPError):
                await asking

    asyncio.run(ask_and_leave())
    until(lambda: not is_busy(slow, name))
    assert slow.get(name)["turns"] == 0


def test_a_context_is_committed_when_its_end_is_seen(ann: Caller) -> None:
    """Asked at the moment of the last event, before the connection has ended."""
    name = ann.created(prompt="a")
    for turns in range(1, 11):
        headers, body = ann.turn_request(name, {"prompt": "b"} | STREAMED)
        with ann.http.stream("POST", "/v1/completions", json=body, headers=headers) as answer:
            for line in answer.iter_lines():
                if line.startswith("data: {") and json.loads(line[6:])["choices"]:
                    (choice,) = json.loads(line[6:])["choices"]
                    if choice["finish_reason"]:
                        assert ann.get(name)["turns"] == turns


def test_a_failed_engine_leaves_the_context_as_it_was(slow: Caller, contexts_app: App) -> None:
    name = slow.created(prompt="a")
    fault_now = SimFault(FaultKind.FAIL_REQUEST)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(slow.complete, name, "b", **LONG | STREAMED)
        until(lambda: is_busy(slow, name))
        contexts_app.replicas("slow").inject.remote(fault_now).result()
        *_, last = events(running.result().text)
    assert "error" in json.loads(last)
    assert not is_busy(slow, name)
    assert slow.get(name)["turns"] == 0
    assert slow.complete(name, "b").status_code == 200


# --- strangers ----------------------------------------------------------------------------------


def test_a_stolen_id_opens_nothing_on_any_route(ann: Caller, bob: Caller) -> None:
    """Whatever bob tries with ann's id is answered like an id that never was, to the byte."""
    text = ann.created(prompt="a", metadata={"secret": "s"})
    chat = ann.created(messages=[user("hi")])
    never = "ctx-" + "x" * 32

    def tried(stolen_text: str, stolen_chat: str) -> list[tuple[int, str]]:
        answers = [
            bob.call("GET", f"/{stolen_text}"),
            bob.call("PATCH", f"/{stolen_text}", json={"ttl": 9, "metadata": {}}),
            bob.call("POST", f"/{stolen_text}/fork"),
            bob.call("DELETE", f"/{stolen_text}"),
            bob.call("GET", params={"after": stolen_text}),
            bob.complete(stolen_text, "b"),
            bob.complete(stolen_text, "b", stream=True),
            bob.complete(stolen_text, "b", headers={"x-session-turn": "0"}),
            bob.complete(stolen_text, "b", headers={"x-session-wait": "1"}),
            bob.complete(stolen_text, "b", model="slow"),
            bob.complete(stolen_chat, "b"),
            bob.chat(stolen_chat, "b"),
            bob.chat(stolen_chat, "b", stream=True),
            bob.chat(stolen_text, "b"),
            bob.turn("/v1/responses", stolen_text, {"input": "b"}),
        ]
        return [(answer.status_code, answer.text) for answer in answers]

    before = [ann.get(text), ann.get(chat)]
    stolen = tried(text, chat)
    assert stolen == tried(never, never)
    assert {status for status, _ in stolen} <= {200, 400, 404}
    assert [ann.get(text), ann.get(chat)] == before
    listed = bob.call("GET", params={"limit": 100}).json()["data"]
    assert not {text, chat} & {context["id"] for context in listed}


def test_no_log_has_a_whole_id(slow: Caller) -> None:
    name = slow.created(messages=[user("hi")])
    for answer in (
        slow.chat(name, "a"),
        slow.chat(name, "a", stream=True),
        slow.chat(name, "a", n=2),
        slow.call("PATCH", f"/{name}", json={"ttl": 60}),
        slow.call("POST", f"/{name}/fork"),
        slow.call("GET", params={"after": name}),
        slow.call("DELETE", f"/{name}"),
        slow.call("GET", f"/{name}"),
    ):
        assert answer.status_code < 500
    session = Path(ray.worker.global_worker.node.get_session_dir_path())
    logs = [path for path in session.glob("logs/**/*") if path.is_file()]
    assert len(logs) > 5
    assert [path for path in logs if name.encode() in path.read_bytes()] == []


def test_without_a_key_nothing_is_told(ann: Caller) -> None:
    name = ann.created(prompt="a")
    for answer in (
        ann.http.get(f"/v1/context/{name}"),
        ann.http.get("/v1/context"),
        ann.http.post("/v1/context", json={"model": "fast", "prompt": "a"}),
        ann.http.delete(f"/v1/context/{name}"),
    ):
        assert fault(answer) == (401, "invalid_api_key")


def test_a_tenant_has_a_quota_of_contexts_and_plain_requests_go_on(
    contexts_http: httpx.Client,
) -> None:
    eve, made = Caller(contexts_http, "fast", "eve"), list[str]()
    with ThreadPoolExecutor(8) as pool:
        lock = threading.Lock()

        def make(number: int) -> int:
            answer = eve.create(prompt=[number + 1])
            if answer.status_code == 201:
                with lock:
                    made.append(answer.json()["id"])
            return answer.status_code

        statuses = set(pool.map(make, range(QUOTA + 5)))
        assert (statuses, len(made)) == ({201, 429}, QUOTA)
        assert fault(eve.create(prompt="a"))[0] == 429
        assert fault(eve.call("POST", f"/{made[0]}/fork"))[0] == 429
        assert eve.complete("no-context", "a").status_code == 200
        assert eve.complete(made[0], "b").status_code == 200
        list(pool.map(lambda name: eve.call("DELETE", f"/{name}"), made))
    assert eve.create(prompt="a").status_code == 201
