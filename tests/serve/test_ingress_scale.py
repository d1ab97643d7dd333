"""Replicas that come, go or never come: nothing else is harmed by it."""

import asyncio
import time
from collections.abc import Callable

import httpx
import pytest
from ray import serve

from tests.serve.sim_app import FAST, SLOW, App, sim_model

pytestmark = [pytest.mark.ray, pytest.mark.slow]

COMPLETIONS = "/v1/completions"


def running(app: App, model: str) -> int:
    deployment = serve.status().applications[app.name].deployments[f"llm-{model}"]
    return deployment.replica_states.get("RUNNING", 0)


async def until(condition: Callable[[], bool], within_s: float) -> bool:
    deadline_s = time.monotonic() + within_s
    while not await asyncio.to_thread(condition):
        if time.monotonic() > deadline_s:
            return False
        await asyncio.sleep(0.25)
    return True


async def test_a_broken_model_and_an_idle_one_harm_nobody(deploy: Callable[..., App]) -> None:
    """`idle` may have no replica; `broken` never gets one, because its pool is too small."""
    idle = {"min_replicas": 0, "max_replicas": 1, "upscale_delay_s": 0}
    app = deploy(
        "mixed",
        blocking=False,
        models=[
            sim_model("good", FAST),
            sim_model("idle", FAST, autoscaling=idle),
            sim_model("broken", FAST | {"total_blocks": 2, "block_size": 1}),
        ],
        ingress={"cpus_per_replica": 0, "first_token_timeout_s": 25},
    )

    async with httpx.AsyncClient(base_url=app.url, timeout=60) as web:

        async def ask(model: str) -> httpx.Response:
            return await web.post(
                COMPLETIONS, json={"model": model, "prompt": "a", "max_tokens": 1}
            )

        async def is_up() -> bool:
            try:
                return (await web.get("/health")).status_code == 200
            except httpx.TransportError:
                return False

        for _ in range(180):
            if await is_up():
                break
            await asyncio.sleep(0.5)
        assert (await ask("good")).status_code == 200
        assert len((await web.get("/v1/models")).json()["data"]) == 3
        assert running(app, "idle") == 0
        broken = await ask("broken")
        assert broken.status_code == 503
        assert int(broken.headers["retry-after"]) >= 1
        assert broken.json()["error"]["type"] == "server_error"
        assert (await ask("idle")).status_code == 200
        assert (await ask("good")).status_code == 200
        assert (await web.get("/health")).status_code == 200
    serve.delete(app.name)


async def test_a_burst_beyond_the_slots_is_forgotten_and_the_replicas_go_again(
    deploy: Callable[..., App],
) -> None:
    """Were rejected streams still counted, Serve would believe in load for ever."""
    app = deploy(
        "elastic",
        models=[
            sim_model(
                "elastic",
                SLOW,
                max_ongoing_requests=2,
                autoscaling={
                    "min_replicas": 1,
                    "max_replicas": 2,
                    "target_ongoing_requests": 1,
                    "upscale_delay_s": 0,
                    "downscale_delay_s": 3,
                },
            )
        ],
        ingress={"cpus_per_replica": 0, "max_queued_requests": 8},
    )
    body = {"model": "elastic", "prompt": "a", "max_tokens": 150, "stream": True}
    async with httpx.AsyncClient(base_url=app.url, timeout=120) as web:
        burst = asyncio.gather(*(web.post(COMPLETIONS, json=body) for _ in range(30)))
        assert await until(lambda: running(app, "elastic") == 2, 60)
        answers = await burst
        assert {answer.status_code for answer in answers} == {200, 503}
        assert await until(lambda: running(app, "elastic") == 1, 120)
        last = await web.post(COMPLETIONS, json=body | {"max_tokens": 1})
        assert last.status_code == 200
    serve.delete(app.name)
