"""Clients that go, queues that are full, and prompts that take long to render."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeVar

import httpx
import pytest

from tests.serve.sim_app import App

pytestmark = pytest.mark.ray

T = TypeVar("T")

COMPLETIONS = "/v1/completions"
IDLE_WITHIN_S = 5.0
"""The promise is one second; a test machine may be busy, and left alone these would run minutes."""


async def until(condition: Callable[[], bool], within_s: float) -> bool:
    deadline_s = time.monotonic() + within_s
    while time.monotonic() < deadline_s:
        if await asyncio.to_thread(condition):
            return True
        await asyncio.sleep(0.02)
    return False


async def served(app: App, model: str) -> int:
    return sum(await asyncio.to_thread(app.served, model))


async def is_idle(app: App, model: str, within_s: float = IDLE_WITHIN_S) -> bool:
    return await until(lambda: app.unfinished(model) == 0, within_s)


async def is_busy(app: App, model: str, requests: int) -> bool:
    return await until(lambda: app.unfinished(model) == requests, 10)


def endless(model: str, stream: bool) -> dict[str, object]:
    return {"model": model, "prompt": "go on", "max_tokens": 5000, "stream": stream}


@pytest.fixture
async def web(app: App) -> httpx.AsyncClient:
    async with httpx.AsyncClient(
        base_url=app.url, timeout=60, limits=httpx.Limits(max_connections=400)
    ) as client:
        yield client


async def gone(task: "asyncio.Task[object]") -> None:
    """The client hangs up."""
    task.cancel()
    with suppress(asyncio.CancelledError, httpx.ReadError):
        await task


async def test_a_client_that_leaves_its_stream_frees_the_engine(
    app: App, web: httpx.AsyncClient
) -> None:
    async with web.stream("POST", COMPLETIONS, json=endless("slow", True)) as answer:
        lines = answer.aiter_lines()
        await anext(lines)
        assert await is_busy(app, "slow", 1)
    assert await is_idle(app, "slow")


async def test_a_client_that_leaves_a_plain_request_frees_the_engine(
    app: App, web: httpx.AsyncClient
) -> None:
    asking = asyncio.create_task(web.post(COMPLETIONS, json=endless("slow", False)))
    assert await is_busy(app, "slow", 1)
    await gone(asking)
    assert await is_idle(app, "slow")


async def test_a_client_that_leaves_the_queue_never_reaches_the_engine(
    app: App, web: httpx.AsyncClient
) -> None:
    """`tight` runs two at a time; the third waits inside Serve when its client goes."""
    asking = [
        asyncio.create_task(web.post(COMPLETIONS, json=endless("tight", False))) for _ in range(3)
    ]
    assert await is_busy(app, "tight", 2)
    served_before = await served(app, "tight")
    await asyncio.gather(*map(gone, asking))
    assert await is_idle(app, "tight")
    await asyncio.sleep(0.5)
    assert await is_idle(app, "tight", 0.1)
    assert await served(app, "tight") == served_before


def big_prompt() -> str:
    words = random.Random(0).choices(["alpha", "beta", "naïve", "x1y2", "hello"], k=180_000)
    return " ".join(words)[:1_000_000]


async def test_a_client_that_leaves_while_its_prompt_is_rendered_costs_no_engine(
    app: App, web: httpx.AsyncClient
) -> None:
    served_before = await served(app, "long")
    body = {"model": "long", "prompt": big_prompt(), "max_tokens": 5000}
    asking = asyncio.create_task(web.post(COMPLETIONS, json=body))
    await asyncio.sleep(0.15)
    await gone(asking)
    await asyncio.sleep(3)
    assert await is_idle(app, "long", 0.1)
    assert await served(app, "long") == served_before


async def slowest(ask: Callable[[], Awaitable[object]], stop: asyncio.Event) -> float:
    """The longest of many calls, in seconds."""
    worst_s = 0.0
    while not stop.is_set():
        begun_s = time.monotonic()
        await ask()
        worst_s = max(worst_s, time.monotonic() - begun_s)
    return worst_s


async def worst_delay_s(web: httpx.AsyncClient, meanwhile: Awaitable[T]) -> tuple[float, T]:
    """Of `/health` and of another client's stream, until `meanwhile` is done; and its result."""

    async def health() -> None:
        assert (await web.get("/health")).status_code == 200
        await asyncio.sleep(0.01)

    async with web.stream("POST", COMPLETIONS, json=endless("slow", True)) as stream:
        lines = stream.aiter_lines()
        await anext(lines)
        stop = asyncio.Event()
        watching = [
            asyncio.create_task(slowest(ask, stop)) for ask in (health, lambda: anext(lines))
        ]
        result = await meanwhile
        stop.set()
        return max(await asyncio.gather(*watching)), result


async def added_delay_s(web: httpx.AsyncClient) -> float:
    """What a megabyte adds to the worst delay of an equally long time without it."""
    body = {"model": "long", "prompt": big_prompt(), "max_tokens": 1}
    begun_s = time.monotonic()
    with_it_s, answer = await worst_delay_s(web, web.post(COMPLETIONS, json=body))
    assert answer.status_code == 200
    without_s, _ = await worst_delay_s(web, asyncio.sleep(time.monotonic() - begun_s))
    return with_it_s - without_s


async def test_a_megabyte_being_rendered_holds_up_nobody_else(
    app: App, web: httpx.AsyncClient
) -> None:
    """One round of three suffices, because the machine may be busy; held up, none would do."""
    added_s = []
    while len(added_s) < 3 and min(added_s, default=1.0) >= 0.5:
        added_s.append(await added_delay_s(web))
    assert min(added_s) < 0.5


async def test_a_full_queue_is_503_with_the_seconds_to_wait(
    app: App, web: httpx.AsyncClient
) -> None:
    """Two run, four wait; whoever comes then is turned away at once, in OpenAI's shape."""
    asking = [
        asyncio.create_task(web.post(COMPLETIONS, json=endless("tight", index % 2 == 0)))
        for index in range(30)
    ]
    done, waiting = await asyncio.wait(asking, timeout=5)
    answers = [task.result() for task in done]
    assert len(answers) >= 20
    assert {answer.status_code for answer in answers} == {503}
    assert {answer.headers["retry-after"] for answer in answers} == {"2"}
    assert answers[0].json()["error"]["code"] == "overloaded"
    await asyncio.gather(*map(gone, waiting))
    assert await is_idle(app, "tight", 5)


async def test_rejections_leave_nothing_behind(app: App, web: httpx.AsyncClient) -> None:
    """After a burst far beyond the slots, a request is served as on the first day."""
    body = {"model": "tight", "prompt": "a", "max_tokens": 1, "stream": True}
    answers = await asyncio.gather(*(web.post(COMPLETIONS, json=body) for _ in range(40)))
    assert {answer.status_code for answer in answers} <= {200, 503}
    for _ in range(6):
        assert (await web.post(COMPLETIONS, json=body)).status_code == 200
    assert await is_idle(app, "tight")


async def test_clients_that_leave_at_any_time_leave_an_idle_engine(
    app: App, web: httpx.AsyncClient
) -> None:
    """Half of them streamed; some go while they are rendered, queued, prefilled or decoded."""
    rng = random.Random(1)

    async def ask_and_go(index: int) -> None:
        asking = asyncio.create_task(web.post(COMPLETIONS, json=endless("fast", index % 2 == 0)))
        await asyncio.sleep(rng.uniform(0, 2))
        await gone(asking)

    await asyncio.gather(*(ask_and_go(index) for index in range(300)))
    assert await is_idle(app, "fast", 5)


async def test_the_first_token_is_sent_when_it_exists(app: App, web: httpx.AsyncClient) -> None:
    """Tokens come every 100 ms; held back, they would arrive together."""
    body = {"model": "slow", "prompt": "a", "max_tokens": 6, "stream": True}
    arrivals_s = []
    async with web.stream("POST", COMPLETIONS, json=body) as answer:
        async for line in answer.aiter_lines():
            if line.startswith("data: {"):
                arrivals_s.append(time.monotonic())
    assert len(arrivals_s) == 6
    assert arrivals_s[-1] - arrivals_s[0] > 0.3
