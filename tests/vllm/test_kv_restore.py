"""Conversations that go on at another replica, from what is stored, as if nothing had happened."""

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
import ray

from router.serve.actor_family import NAMESPACE
from tests.serve.cached_app import BLOCK_SIZE, until
from tests.serve.context_calls import STREAMED, events, usage_of
from tests.vllm.conversations import NOT_KEPT, OBJECT_BLOCKS, OPTIONS, next_id, talk
from tests.vllm.real_app import LLM, REPLICAS, RealApp, running_app

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(900)]

RESTART_LIMIT_S = 240


@pytest.fixture(scope="module")
def app() -> Iterator[RealApp]:
    folder = Path(tempfile.mkdtemp(prefix="wp-", dir="/tmp"))
    kept = Path(tempfile.mkdtemp(prefix="wp-kept-", dir="/tmp"))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    contexts = {"journal": f"{kept}/contexts.sqlite", "lease_s": 2.0}
    store = {"enabled": True, "object_blocks": OBJECT_BLOCKS, "memory_gib": 0.1}
    try:
        with running_app(folder, port, contexts=contexts, kv_store=store) as started:
            yield started
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        shutil.rmtree(kept, ignore_errors=True)


@pytest.fixture(scope="module")
def http(app: RealApp) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=app.url, timeout=120) as client:
        yield client


def until_stored(app: RealApp, tokens: int, before: int = 0) -> None:
    """The index knows so many more."""
    blocks = before + tokens // BLOCK_SIZE
    until(lambda: app.stats()["index"]["stored_blocks"] >= blocks, 60)


def stored_blocks(app: RealApp) -> int:
    return int(app.stats()["index"]["stored_blocks"])


def settled_blocks(app: RealApp) -> int:
    """Once nothing has come or gone for a while: a store that died is replaced within seconds."""
    known, since_s = -1, time.monotonic()
    while time.monotonic() < since_s + 8:
        if (blocks := stored_blocks(app)) != known:
            known, since_s = blocks, time.monotonic()
        time.sleep(0.2)
    return known


def pid_of(app: RealApp, replica_id: str) -> int:
    return next(pid for pid in app.pids(LLM) if app.replica_id(LLM, pid) == replica_id)


def kill(app: RealApp, replica_id: str) -> None:
    os.kill(pid_of(app, replica_id), signal.SIGKILL)


def until_missed(app: RealApp) -> None:
    """A turn that is decided before is decided for the dead one first."""
    until(lambda: app.stats()["candidates"] < REPLICAS)


def until_whole(app: RealApp) -> None:
    until(lambda: len(app.pids(LLM)) == REPLICAS, RESTART_LIMIT_S)
    app.until_known(REPLICAS)


def test_a_conversation_goes_on_after_its_replica_was_killed_between_turns(
    app: RealApp, http: httpx.Client
) -> None:
    conversation = talk(app, http, 1, 700)
    first = conversation.turn(5, 6, 7)
    conversation.until_stored()
    kill(app, first["replica"])
    until_missed(app)
    after = conversation.turn(8, 9)
    assert after["replica"] != first["replica"]
    assert after["reason"] == "kv_load", str(after)
    assert after["load_blocks"] * BLOCK_SIZE >= 640
    assert after["cached_tokens"] == [after["forecast_blocks"][0] * BLOCK_SIZE]
    assert after["cached_tokens"] == [after["usage"]]
    assert after["causes"] == {}
    again = conversation.turn(10)
    assert again["load_blocks"] == 0
    assert again["cached_tokens"][0] >= after["cached_tokens"][0]
    until_whole(app)


def test_the_turn_right_after_a_kill_loads_at_the_replica_that_serves_it(
    app: RealApp, http: httpx.Client
) -> None:
    """Before Serve and the index know of it: decided for the dead one, and then anew."""
    conversation = talk(app, http, 7, 700)
    first = conversation.turn(5, 6, 7)
    conversation.until_stored()
    victim = pid_of(app, first["replica"])
    os.kill(victim, signal.SIGKILL)
    after = conversation.turn(8, 9)
    assert (after["decided_replica"], after["attempts"]) == (first["replica"], 1)
    assert after["replica"] != first["replica"]
    assert after["reason"] == "kv_load:rerouted", str(after)
    assert after["load_blocks"] * BLOCK_SIZE >= 640
    assert after["cached_tokens"] == [after["forecast_blocks"][0] * BLOCK_SIZE]
    assert after["cached_tokens"] == [after["usage"]]
    assert after["causes"] == {}
    until(lambda: victim not in app.pids(LLM), 60)  # Serve's controller has to notice first
    until_whole(app)


def test_a_turn_whose_replica_is_killed_leaves_no_trace_and_the_next_one_loads(
    app: RealApp, http: httpx.Client
) -> None:
    conversation = talk(app, http, 2, 500)
    first = conversation.turn(5, 6, 7)
    conversation.until_stored()
    body = {"prompt": [8, 9], "max_tokens": 900, "ignore_eos": True} | STREAMED
    headers, body = conversation.caller.turn_request(conversation.name, body)
    with (
        suppress(httpx.TransportError),
        http.stream("POST", "/v1/completions", json=body, headers=headers) as answer,
    ):
        lines = answer.iter_lines()
        next(line for line in lines if line.startswith("data: "))
        kill(app, first["replica"])
        assert events("\n".join(lines))[-1:] != ["[DONE]"]
    until_missed(app)
    after = conversation.turn(10)
    assert after["replica"] != first["replica"]
    assert after["load_blocks"] > 0, str(after)
    assert after["cached_tokens"] == [after["forecast_blocks"][0] * BLOCK_SIZE]
    until_whole(app)


def test_a_load_from_a_store_that_died_is_computed_and_named(
    app: RealApp, http: httpx.Client
) -> None:
    """Neither the log nor the usage counts what was not loaded as cached."""
    conversation = talk(app, http, 3, 600)
    conversation.turn(5, 6, 7)
    conversation.until_stored()
    app.reset()
    for store in stores():
        ray.kill(store)
    after = conversation.turn(8)
    assert after["load_blocks"] > 0, str(after)
    assert after["causes"] == {"load_failed": 1}
    assert after["cached_tokens"] == [0] == [after["usage"]]


def test_the_usage_of_a_stream_counts_what_was_not_loaded_as_computed(
    app: RealApp, http: httpx.Client
) -> None:
    """It began before the engine knew."""
    conversation = talk(app, http, 6, 600)
    conversation.turn(5, 6, 7)
    conversation.until_stored()
    app.reset()
    for store in stores():
        ray.kill(store)
    number = next_id("restore")
    options = OPTIONS | STREAMED | {"headers": {"X-Request-Id": number}}
    answer = conversation.caller.complete(conversation.name, [8], **options)
    assert usage_of(answer)["prompt_tokens_details"]["cached_tokens"] == 0
    line = app.log.line(number)
    assert line["load_blocks"] > 0, str(line)
    assert (line["causes"], line["cached_tokens"]) == ({"load_failed": 1}, [0])


def stores() -> list[Any]:
    named = ray.util.list_named_actors(all_namespaces=True)
    names = [actor["name"] for actor in named if actor["name"].startswith("kv-store")]
    assert names
    return [ray.get_actor(name, namespace=NAMESPACE) for name in names]


def test_what_a_client_forbids_to_keep_is_not_kept(app: RealApp, http: httpx.Client) -> None:
    kept = settled_blocks(app)
    secret = talk(app, http, 4, 300, **NOT_KEPT)
    for new in range(3):
        secret.turn(500 + new)
    open_one = talk(app, http, 5, 300)
    until_stored(app, 256, kept)
    assert settled_blocks(app) - kept <= open_one.stored_tokens // BLOCK_SIZE
