"""The questions that the project began with, asked of a real engine."""

import json
from array import array
from collections.abc import Callable
from typing import Any

import pytest

from replicas.engines.protocol import EngineRequest
from tests.contract.engine_client import EngineClient, cached_tokens, collect

pytestmark = [pytest.mark.vllm, pytest.mark.asyncio(loop_scope="session")]

Chat = Callable[..., EngineRequest]


def system_prompt(topic: str) -> dict[str, str]:
    """Several blocks long, and different from the start for each topic."""
    return {"role": "system", "content": f"{topic}: " + f"You answer questions on {topic}. " * 30}


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


async def ask(client: EngineClient, request: EngineRequest) -> dict[str, Any]:
    (document,) = await collect(client.engine, request)
    answer: dict[str, Any] = json.loads(document)
    return answer


def shared_blocks(first: EngineRequest, second: EngineRequest, block_size: int) -> int:
    """Leading full blocks that two prompts have in common."""
    left, right = (array("I", request.prompts[0]) for request in (first, second))
    common = next(
        (i for i, (a, b) in enumerate(zip(left, right, strict=False)) if a != b),
        min(len(left), len(right)),
    )
    return common // block_size


async def test_two_users_with_one_system_prompt_share_its_blocks(
    client: EngineClient, chat: Chat
) -> None:
    system = system_prompt("astronomy")
    first = chat([system, user("What is a comet?")], cache_salt="tenant")
    second = chat([system, user("How far away is the moon?")], cache_salt="tenant")
    expected = shared_blocks(first, second, client.info.block_size)
    assert expected > 3
    assert cached_tokens(await ask(client, first)) == 0
    assert cached_tokens(await ask(client, second)) == expected * client.info.block_size


async def test_two_tasks_with_different_system_prompts_never_mix(
    client: EngineClient, chat: Chat
) -> None:
    """Neither reuses a block of the other, and each is answered as on an engine of its own."""
    question = user("What should I read first?")
    tasks = [chat([system_prompt(topic), question]) for topic in ("cooking", "gardening")]
    alone = []
    for task in tasks:
        await client.until_idle()
        assert await client.engine.reset_prefix_cache()
        alone.append((await ask(client, task))["choices"])
    assert await client.engine.reset_prefix_cache()
    together = [await ask(client, task) for task in tasks]
    assert [cached_tokens(answer) for answer in together] == [0, 0]
    assert [answer["choices"] for answer in together] == alone
    assert alone[0] != alone[1]


async def test_changing_the_system_prompt_in_one_conversation_erases_nothing(
    client: EngineClient, chat: Chat
) -> None:
    old, changed = system_prompt("music"), system_prompt("painting")
    talk = [user("Who invented it?"), {"role": "assistant", "content": "Nobody knows."}]
    before = chat([old, *talk, user("Really?")])
    after = chat([changed, *talk, user("Really?")])
    first = await ask(client, before)
    assert cached_tokens(await ask(client, after)) == 0
    again = await ask(client, before)
    full_blocks = (again["usage"]["prompt_tokens"] - 1) // client.info.block_size
    assert cached_tokens(again) == full_blocks * client.info.block_size
    assert again["choices"] == first["choices"]
