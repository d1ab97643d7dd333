"""What is forecast is what engines report; what the index believes is what they hold."""

import os
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tests.serve.cached_app import pid_of, until
from tests.vllm.mixed_requests import COUNTS, Ask, Mix
from tests.vllm.real_app import LLM, REPLICAS, RealApp, Served, running_app
from tests.vllm.streams import Stream, streams_while

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(600)]

SEED = 4
ERROR_LIMIT_S = 1.0
RESTART_LIMIT_S = 240


@pytest.fixture(scope="module")
def started() -> Iterator[RealApp]:
    folder = Path(tempfile.mkdtemp(prefix="wp-", dir="/tmp"))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with running_app(folder, port) as app:
        yield app
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def web(started: RealApp) -> Iterator[httpx.Client]:
    limits = httpx.Limits(max_connections=100)
    with httpx.Client(base_url=started.url, timeout=120, limits=limits) as client:
        yield client


@pytest.fixture
def app(started: RealApp) -> RealApp:
    """All replicas known, nothing under way, and the index in step with the engines."""
    started.until_known(REPLICAS)
    until(lambda: started.stats()["bookings"] == 0, 60)
    started.until_exact()
    return started


@pytest.fixture(scope="module")
def one_by_one(started: RealApp, web: httpx.Client) -> list[Served]:
    """The mix, each request once the index knows what the one before has left."""
    mix, served = Mix(SEED), list[Served]()
    while (ask := mix.next_ask()) is not None:
        started.until_exact()
        served.append(started.serve(web, ask, f"one-{len(served)}"))
        mix.hear(served[-1].answer)
    return served


def test_one_at_a_time_every_forecast_is_the_engines_figure(
    app: RealApp, one_by_one: list[Served]
) -> None:
    differing = [one for one in one_by_one if one.differences or one.line["causes"]]
    assert not differing, "\n".join(map(str, differing))
    assert all(one.is_told_alike for one in one_by_one)
    app.until_exact()
    assert Counter(one.ask.kind for one in one_by_one) == COUNTS
    assert len({one.line["replica"] for one in one_by_one}) == REPLICAS
    warm = Counter(one.ask.kind for one in one_by_one if any(one.line["cached_tokens"]))
    assert set(warm) == set(COUNTS)


def test_sixteen_in_flight_every_difference_has_a_named_cause(
    app: RealApp, web: httpx.Client, one_by_one: list[Served], capsys: pytest.CaptureFixture[str]
) -> None:
    """From empty caches, so that much is expected, computed and evicted all at once."""
    app.reset()
    asks = [one.ask for one in one_by_one]
    with ThreadPoolExecutor(16) as pool:
        served = list(pool.map(lambda item: serve(app, web, *item), enumerate(asks)))
    causes = sum((Counter(one.line["causes"]) for one in served), Counter[str]())
    with capsys.disabled():
        sys.stdout.write(table(causes, served))
    assert causes
    assert not causes.keys() & {"unexplained", "index_stale"}
    assert causes.total() == sum(one.differences for one in served)
    assert all(one.is_told_alike for one in served)
    app.until_exact()


def serve(app: RealApp, web: httpx.Client, number: int, ask: Ask) -> Served:
    return app.serve(web, ask, f"many-{number}")


def table(causes: Counter[str], served: list[Served]) -> str:
    requests = sum(len(one.line["cached_tokens"]) for one in served)
    rows = [("equal", requests - causes.total()), *causes.most_common()]
    head = f"\n{requests} engine requests of {len(served)} calls, 16 in flight:\n"
    return head + "".join(f"  {cause:12} {times:4}\n" for cause, times in rows)


def test_an_event_that_is_kept_back_is_caught(app: RealApp, web: httpx.Client) -> None:
    """Inside a batch that arrives, so that no number is missing."""
    ask = Ask("mutation", "/v1/completions", "ann", completion(Mix(time.time_ns()).ids(97)))
    app.withhold()
    served = [app.serve(web, ask, f"mutation-{time.time_ns()}") for _ in range(REPLICAS + 1)]
    caught = [one for one in served if one.differences]
    assert caught
    assert all(set(one.line["causes"]) == {"unexplained"} for one in caught)
    assert not app.is_exact()
    app.tell()
    app.reset()
    app.until_exact()


def completion(token_ids: list[int]) -> dict[str, object]:
    return {"model": "m", "prompt": token_ids, "max_tokens": 1}


def load(app: RealApp, web: httpx.Client, requests: int = 24) -> list[Served]:
    """A part of a mix that no test has seen, eight in flight; streams and talks are left out."""
    mix = Mix(time.time_ns())
    asks = [ask for _ in range(200) if (ask := mix.next_ask()) and ask.kind in ("length", "list")]
    ids = f"load-{time.time_ns()}"
    with ThreadPoolExecutor(8) as pool:
        numbered = enumerate(asks[:requests])
        return list(pool.map(lambda item: app.serve(web, item[1], f"{ids}-{item[0]}"), numbered))


def test_a_killed_index_harms_no_stream_and_learns_everything_again(
    app: RealApp, web: httpx.Client
) -> None:
    pid = pid_of(app.index())
    streams, _ = streams_while(web, lambda: os.kill(pid, signal.SIGKILL))
    assert all(stream.is_whole for stream in streams)
    app.until_exact(60)
    assert pid_of(app.index()) != pid
    until(lambda: app.stats()["bookings"] == 0, 15)
    load(app, web)
    app.until_exact()


def test_an_index_that_stood_still_for_two_seconds_catches_up(
    app: RealApp, web: httpx.Client
) -> None:
    pid = pid_of(app.index())
    os.kill(pid, signal.SIGSTOP)
    try:
        with ThreadPoolExecutor(1) as pool:
            loaded = pool.submit(load, app, web)
            time.sleep(2)
            os.kill(pid, signal.SIGCONT)
            served = loaded.result()
    finally:
        os.kill(pid, signal.SIGCONT)
    assert not {cause for one in served for cause in one.line["causes"]} & {"unexplained"}
    app.until_exact()
    assert pid_of(app.index()) == pid


def test_a_reset_of_idle_engines_is_in_the_index_without_another_request(
    app: RealApp, web: httpx.Client
) -> None:
    load(app, web)
    app.until_exact()
    assert all(app.engines().values())
    app.reset()
    app.until_exact()
    assert not any(app.indexed().values())


def test_a_killed_replica_ends_its_streams_with_one_error_and_loses_no_waiting_request(
    app: RealApp, web: httpx.Client
) -> None:
    victim = next(iter(app.pids(LLM)))
    streams, killed_s = streams_while(web, lambda: os.kill(victim, signal.SIGKILL))
    until(lambda: app.stats()["bookings"] == 0, 15)
    broken = [stream for stream in streams if not stream.is_whole]
    assert broken
    assert all(stream.is_broken_off for stream in broken), broken
    assert all(ends_within(stream, killed_s + ERROR_LIMIT_S) for stream in broken)
    assert any(app.log.line(stream.http_request_id)["attempts"] > 1 for stream in streams)
    until(lambda: victim not in app.pids(LLM) and len(app.pids(LLM)) == REPLICAS, RESTART_LIMIT_S)


def test_the_successor_of_a_killed_replica_enters_the_index_empty(
    app: RealApp, web: httpx.Client
) -> None:
    load(app, web)
    before = set(app.engines())
    victim = next(iter(app.pids(LLM)))
    os.kill(victim, signal.SIGKILL)
    until(lambda: victim not in app.pids(LLM) and len(app.pids(LLM)) == REPLICAS, RESTART_LIMIT_S)
    app.until_exact()
    (newcomer,) = set(app.engines()) - before
    assert app.indexed()[newcomer] == set()
    load(app, web)
    app.until_exact()


def ends_within(stream: Stream, limit_s: float) -> bool:
    return stream.ended_s is not None and stream.ended_s <= limit_s


def test_a_killed_ingress_takes_along_only_its_own_streams_and_no_booking_stays(
    app: RealApp, web: httpx.Client
) -> None:
    """It can write no error any more: its streams break off, what had not begun is a 500."""
    victim = next(iter(app.pids("Ingress")))
    streams, killed_s = streams_while(web, lambda: os.kill(victim, signal.SIGKILL))
    broken = [stream for stream in streams if not stream.is_whole]
    assert 0 < len(broken) < len(streams)
    assert all(stream.failure or stream.status == 500 for stream in broken), broken
    assert all(ends_within(stream, killed_s + ERROR_LIMIT_S) for stream in broken)
    assert not any(stream.errors for stream in broken)
    until(lambda: app.stats()["bookings"] == 0, 60)
    app.until_exact()
    until(lambda: victim not in app.pids("Ingress") and len(app.pids("Ingress")) == 2, 120)
