"""Requests follow their prefix through real Serve hops: ingresses, index, router, replicas."""

import json
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import httpx
import pytest
import ray
from ray import serve
from ray.serve._private.constants import SERVE_CONTROLLER_NAME, SERVE_NAMESPACE

from router.core.types import ReplicaId
from serve_app.observe.decision_headers import alias
from tests.serve.cached_app import (
    BLOCK_SIZE,
    CachedApp,
    Reply,
    completion,
    pid_of,
    prompt,
    reply,
    until,
)
from tests.serve.sim_app import FAST, sim_model

pytestmark = pytest.mark.ray

REPLICAS = 4
LLM = "llm-m"
LEASE_S = 30.0
"""`index.forget_after_s`, which is the default here."""


@pytest.fixture(scope="module")
def cached(serve_port: int) -> Iterator[CachedApp]:
    """Two ingresses before four simulated replicas."""
    args = {
        "models": [sim_model("m", FAST | {"decode_ms_per_token": 5.0}, replicas=REPLICAS)],
        "ingress": {"cpus_per_replica": 0, "replicas": 2},
    }
    app = CachedApp("cached", f"http://127.0.0.1:{serve_port}/cached", args)
    app.deploy()
    app.until_known(REPLICAS)
    yield app
    serve.delete(app.name)


@pytest.fixture
def web(cached: CachedApp) -> Iterator[httpx.Client]:
    """Every test finds all replicas known, the default policy, and no request under way."""
    until(lambda: cached.stats()["bookings"] == 0, 30)
    cached.until_known(REPLICAS)
    limits = httpx.Limits(max_connections=200)
    with httpx.Client(base_url=cached.url, timeout=60, limits=limits) as client:
        yield client


def chat(client: httpx.Client, text: str) -> Reply:
    body = {"model": "m", "messages": [{"role": "user", "content": text}], "max_tokens": 1}
    return reply(client.post("/v1/chat/completions", json=body))


def response(client: httpx.Client, text: str) -> Reply:
    body = {"model": "m", "input": text, "max_output_tokens": 1}
    return reply(client.post("/v1/responses", json=body))


def text_completion(client: httpx.Client, text: str) -> Reply:
    return completion(client, text)


@pytest.mark.parametrize("call", [chat, response, text_completion])
def test_a_repeated_prompt_goes_where_its_blocks_are_and_the_forecast_holds(
    cached: CachedApp, web: httpx.Client, call: Callable[[httpx.Client, str], Reply]
) -> None:
    """On every route; whichever ingress is asked."""
    for seed in range(4):
        text = f"{call.__name__} {seed} " + "lorem ipsum " * 100
        first = call(web, text)
        cached.until_applied()
        repeated = [call(web, text) for _ in range(3)]
        assert first.forecast_tokens == first.cached_tokens
        assert {again.replica for again in repeated} == {first.replica}
        assert {again.reason for again in repeated} == {"kv_overlap"}
        for again in repeated:
            assert again.forecast_tokens == again.cached_tokens >= 4 * BLOCK_SIZE


@pytest.mark.parametrize(
    ("prompts", "n"),
    [
        ([prompt(1, 6)], 2),
        ([prompt(2, 6), prompt(2, 6), prompt(3, 4)], 1),
        ([prompt(4, 6), [*prompt(4, 3, 0), 7, *prompt(4, 3)]], 2),
        ([prompt(5, 6, 0)], 1),
    ],
    ids=["choices", "list", "shared-prefix", "aligned"],
)
def test_forecasts_of_lists_and_choices_hold_cold_and_warm(
    cached: CachedApp, web: httpx.Client, prompts: list[list[int]], n: int
) -> None:
    cold = completion(web, prompts, n=n)
    cached.until_applied()
    warm = completion(web, prompts, n=n)
    assert cold.forecast_tokens == cold.cached_tokens
    assert warm.forecast_tokens == warm.cached_tokens > cold.cached_tokens
    assert warm.replica == cold.replica


def test_a_minimum_overlap_does_not_keep_affinity_from_starting(
    cached: CachedApp, web: httpx.Client
) -> None:
    cached.deploy(parameters={"min_overlap_blocks": 2, "min_prompt_blocks": 2})
    try:
        first = completion(web, prompt(20, 6))
        cached.until_applied()
        again = completion(web, prompt(20, 6))
        assert again.replica == first.replica
        assert again.forecast_tokens == again.cached_tokens == 6 * BLOCK_SIZE
    finally:
        cached.deploy()


def test_a_change_of_policy_restarts_no_replica_and_loses_no_cache(
    cached: CachedApp, web: httpx.Client
) -> None:
    pids, ingresses = cached.pids(LLM), cached.pids("Ingress")
    first = completion(web, prompt(30, 6))
    cached.until_applied()
    cached.deploy(policy="round_robin")
    try:
        # Both ingresses hear of it.
        until(lambda: {completion(web, [1]).reason for _ in range(12)} == {"round_robin"}, 30)
    finally:
        cached.deploy()
    until(lambda: "round_robin" not in {completion(web, [1]).reason for _ in range(12)}, 30)
    again = completion(web, prompt(30, 6))
    assert (again.replica, again.cached_tokens) == (first.replica, 6 * BLOCK_SIZE)
    assert (cached.pids(LLM), cached.pids("Ingress")) == (pids, ingresses)


def test_a_wrong_change_is_refused_and_what_was_goes_on(
    cached: CachedApp, web: httpx.Client
) -> None:
    ingresses = cached.pids("Ingress")
    cached.deploy(policy="no_such_policy")
    try:
        time.sleep(1)
        assert completion(web, [1]).status == 200
        assert cached.pids("Ingress") == ingresses
    finally:
        cached.deploy()


def test_a_burst_of_one_cold_prefix_through_two_ingresses_does_not_herd(
    web: httpx.Client,
) -> None:
    """All at once, from one system prompt: bounded by `max_load_ratio` of the policy."""
    bodies = [[*prompt(40, 8), n, n] for n in range(100)]
    with ThreadPoolExecutor(100) as pool:
        replies = list(pool.map(lambda body: completion(web, body, max_tokens=20), bodies))
    assert {answer.status for answer in replies} == {200}
    by_replica = Counter(answer.replica for answer in replies)
    assert len(by_replica) == REPLICAS
    assert max(by_replica.values()) <= 2.5 * len(bodies) / REPLICAS


def stream(client: httpx.Client, token_ids: list[int], tokens: int) -> list[str]:
    """The data of all events."""
    body = {"model": "m", "prompt": token_ids, "max_tokens": tokens, "stream": True}
    with client.stream("POST", "/v1/completions", json=body) as answer:
        assert answer.status_code == 200
        lines = answer.iter_lines()
        return [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]


def is_whole(events: list[str]) -> bool:
    return events[-1] == "[DONE]"


def is_broken_off(events: list[str]) -> bool:
    """Exactly one error, and it is the last event."""
    return ["error" in json.loads(event) for event in events if event != "[DONE]"].count(
        True
    ) == 1 and "error" in json.loads(events[-1])


def streams_while(
    client: httpx.Client, count: int, break_it: Callable[[], object], tokens: int = 200
) -> list[list[str]]:
    """So many streams of a second each, of which all are under way when it breaks."""
    with ThreadPoolExecutor(count) as pool:
        streams = [pool.submit(stream, client, prompt(50 + n, 3), tokens) for n in range(count)]
        time.sleep(0.5)
        break_it()
        return [events.result() for events in streams]


def test_a_killed_index_harms_no_stream_and_is_filled_again(
    cached: CachedApp, web: httpx.Client
) -> None:
    first = completion(web, prompt(60, 6))
    cached.until_applied()
    index = cached.index()
    streams = streams_while(web, 20, lambda: os.kill(pid_of(index), signal.SIGKILL))
    assert all(map(is_whole, streams))
    assert completion(web, [1]).status == 200

    def is_back() -> bool:
        again = completion(web, prompt(60, 6))
        return (again.reason, again.replica) == ("kv_overlap", first.replica)

    until(is_back, 60)
    until(lambda: cached.stats()["bookings"] == 0, 10)


def test_a_frozen_index_is_left_alone_and_asked_again(cached: CachedApp, web: httpx.Client) -> None:
    cached.deploy(index_deadline_ms=100, index_probe_interval_s=0.2)
    pid = pid_of(cached.index())
    try:
        os.kill(pid, signal.SIGSTOP)
        replies = [completion(web, prompt(70, 3)) for _ in range(20)]
        os.kill(pid, signal.SIGCONT)
        assert {answer.status for answer in replies} == {200}
        assert replies[-1].reason.startswith("fallback:")
        assert len({answer.replica for answer in replies}) < REPLICAS
    finally:
        os.kill(pid, signal.SIGCONT)
        cached.deploy()
    until(lambda: not completion(web, prompt(70, 3)).reason.startswith("fallback:"), 30)


def test_the_prompts_of_a_killed_replica_are_served_by_others_at_once(
    cached: CachedApp, web: httpx.Client
) -> None:
    """Fifty times its very prompt; and the index lets go of it long before its lease ends."""
    ids = prompt(80, 6)
    completion(web, ids)
    cached.until_applied()
    victim = next(iter(cached.pids(LLM)))
    replica_id = cached.replica_id(LLM, victim)
    assert replica_id in cached.known_replicas()
    os.kill(victim, signal.SIGKILL)
    with ThreadPoolExecutor(10) as pool:
        replies = list(pool.map(lambda _: completion(web, ids), range(50)))
    assert {answer.status for answer in replies} == {200}
    until(lambda: replica_id not in cached.known_replicas(), LEASE_S / 2)
    until(lambda: len(cached.pids(LLM)) == REPLICAS and victim not in cached.pids(LLM), 90)


def test_a_turn_right_after_a_kill_is_decided_on_anew_for_the_replica_that_serves_it(
    cached: CachedApp, web: httpx.Client
) -> None:
    """Neither Serve nor the index knows yet. All replicas hold a beginning, one of them all."""
    beginning = prompt(300, 4, 0)
    cached.deploy(policy="round_robin")
    try:
        until(lambda: {completion(web, [1]).reason for _ in range(12)} == {"round_robin"}, 30)
        replies = [completion(web, beginning) for _ in range(8 * REPLICAS)]
        assert len({answer.replica for answer in replies}) == REPLICAS
    finally:
        cached.deploy()
    until(lambda: "round_robin" not in {completion(web, [1]).reason for _ in range(12)}, 30)
    ids = [*beginning, *prompt(301, 3)]
    first = completion(web, ids)
    cached.until_applied()
    again = completion(web, ids)
    assert (again.replica, again.cached_tokens) == (first.replica, 7 * BLOCK_SIZE)
    by_alias = {alias(ReplicaId(cached.replica_id(LLM, pid))): pid for pid in cached.pids(LLM)}
    victim = by_alias[first.replica]
    os.kill(victim, signal.SIGKILL)
    after = completion(web, ids)
    assert after.replica in by_alias.keys() - {first.replica}
    assert after.forecast_tokens == after.cached_tokens == 4 * BLOCK_SIZE
    assert after.reason == "only_candidate:rerouted"
    until(lambda: len(cached.pids(LLM)) == REPLICAS and victim not in cached.pids(LLM), 90)


def test_streams_of_a_killed_replica_end_with_one_error_and_nothing_stays_booked(
    cached: CachedApp, web: httpx.Client
) -> None:
    victim = next(iter(cached.pids(LLM)))
    streams = streams_while(web, 20, lambda: os.kill(victim, signal.SIGKILL))
    assert all(is_whole(events) or is_broken_off(events) for events in streams)
    until(lambda: cached.stats()["bookings"] == 0, 15)
    until(lambda: len(cached.pids(LLM)) == REPLICAS and victim not in cached.pids(LLM), 90)


def whereabouts(client: httpx.Client, seeds: range) -> dict[int, Reply]:
    """One at a time, so that no load outweighs what is cached."""
    return {n: completion(client, prompt(n, 6)) for n in seeds}


def spread(client: httpx.Client, seeds: range) -> dict[int, Reply]:
    """All at a time, so that load puts them on all replicas."""
    with ThreadPoolExecutor(len(seeds)) as pool:
        replies = pool.map(lambda n: completion(client, prompt(n, 6), max_tokens=40), seeds)
        return dict(zip(seeds, replies, strict=True))


def test_a_killed_controller_of_serve_costs_no_request_and_no_cache(
    cached: CachedApp, web: httpx.Client
) -> None:
    """While it comes back, too: no living replica leaves the index, and affinity goes on."""
    seeds = range(140, 152)
    before, pids = whereabouts(web, seeds), cached.pids(LLM)
    cached.until_applied()
    known = cached.known_replicas()
    controller = ray.get_actor(SERVE_CONTROLLER_NAME, SERVE_NAMESPACE)
    streams = streams_while(web, 20, lambda: os.kill(pid_of(controller), signal.SIGKILL))
    assert all(map(is_whole, streams))
    for _ in range(10):
        after = whereabouts(web, seeds)
        assert {answer.reason for answer in after.values()} == {"kv_overlap"}
        assert {n: after[n].replica for n in seeds} == {n: before[n].replica for n in seeds}
        assert cached.known_replicas() == known
        time.sleep(0.3)
    until(lambda: cached.pids(LLM) == pids, 60)


def test_a_replica_that_is_stopped_under_load_takes_along_nothing_but_its_cache(
    cached: CachedApp, web: httpx.Client
) -> None:
    """No stream breaks, the others keep theirs, and one that joins later gets its share."""
    seeds = range(160, 180)
    before, pids = spread(web, seeds), cached.pids(LLM)
    cached.until_applied()
    try:
        streams = streams_while(web, 20, lambda: cached.deploy(replicas=REPLICAS - 1), tokens=800)
        assert all(map(is_whole, streams))
        until(lambda: len(cached.pids(LLM)) == REPLICAS - 1)
        until(lambda: len(cached.known_replicas()) == REPLICAS - 1, LEASE_S / 2)
        after = whereabouts(web, seeds)
        left = {answer.replica for answer in after.values()}
        stayed = [n for n in seeds if before[n].replica in left]
        assert stayed
        assert all(after[n].replica == before[n].replica for n in stayed)
        assert all(after[n].cached_tokens == 6 * BLOCK_SIZE for n in stayed)
    finally:
        cached.deploy(replicas=REPLICAS)
    cached.until_known(REPLICAS)
    assert len(cached.pids(LLM) & pids) == REPLICAS - 1
    bodies = [[*prompt(181, 8), n, *prompt(200 + n, 2)] for n in range(80)]
    with ThreadPoolExecutor(16) as pool:
        replies = list(pool.map(lambda body: completion(web, body, max_tokens=20), bodies))
    by_replica = Counter(answer.replica for answer in replies)
    (newcomer,) = set(by_replica) - {answer.replica for answer in before.values()}
    assert by_replica[newcomer] >= len(bodies) / REPLICAS / 4


@pytest.mark.slow
def test_what_a_killed_ingress_had_booked_lapses_without_traffic(
    cached: CachedApp, web: httpx.Client
) -> None:
    victim = next(iter(cached.pids("Ingress")))

    def attempt(n: int) -> bool:
        try:
            return is_whole(stream(web, prompt(90 + n, 3), 400))
        except (httpx.TransportError, AssertionError):
            return False

    with ThreadPoolExecutor(20) as pool:
        streams = [pool.submit(attempt, n) for n in range(20)]
        until(lambda: cached.stats()["bookings"] == 20, 30)
        os.kill(victim, signal.SIGKILL)
        assert any(done.result() for done in streams)
    until(lambda: cached.stats()["bookings"] == 0, 60)
    until(lambda: completion(web, [1]).status == 200, 30)
    until(lambda: victim not in cached.pids("Ingress"), 90)


def test_clients_that_leave_take_their_bookings_along(cached: CachedApp, web: httpx.Client) -> None:
    """Before the first token, in the midst, or after the last."""

    def leave(n: int) -> None:
        tokens, wait_s = [(4000, 0.01), (4000, 60), (2, 60)][n % 3]
        body = {"model": "m", "prompt": prompt(220 + n, 3), "max_tokens": tokens, "stream": True}
        with (
            suppress(httpx.ReadTimeout),
            web.stream("POST", "/v1/completions", json=body, timeout=wait_s) as answer,
        ):
            lines = answer.iter_lines()
            next(lines)
            if tokens == 2:
                assert [*lines][-2] == "data: [DONE]"

    swept = cached.stats()["ledger"]["swept"]
    with ThreadPoolExecutor(50) as pool:
        list(pool.map(leave, range(200)))
    until(lambda: cached.stats()["bookings"] == 0, 10)
    assert cached.stats()["ledger"]["swept"] == swept
