"""What a client's JSON becomes, and what is refused."""

from typing import Any

import pytest

from replicas.sim_server.rendering import (
    chat_prompt,
    check_model,
    completion_prompts,
    parse_body,
)
from replicas.sim_server.words import tokenize
from router.core.errors import NotFound, RequestRejected

SYSTEM = {"role": "system", "content": "Be brief."}
USER = {"role": "user", "content": "Hello"}
ANSWER = {"role": "assistant", "content": " baba babe"}


def test_the_next_turn_continues_the_prompt_and_its_answer() -> None:
    first = chat_prompt({"messages": [SYSTEM, USER]})
    second = chat_prompt({"messages": [SYSTEM, USER, ANSWER, USER]})
    said = tokenize(ANSWER["content"])
    assert second[: len(first) + len(said)] == first + said


def test_parts_of_a_message_are_its_text() -> None:
    parts = [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}]
    assert chat_prompt({"messages": [{"role": "user", "content": parts}]}) == chat_prompt(
        {"messages": [USER]}
    )


@pytest.mark.parametrize(
    "more",
    [
        {"tools": [{"type": "function"}]},
        {"messages": [SYSTEM, {"role": "tool", "content": "Hello"}]},
        {"messages": [SYSTEM, {"role": "user", "content": None, "tool_calls": [{"id": "1"}]}]},
        {"add_generation_prompt": False},
    ],
    ids=["tools", "another role", "calls", "open end"],
)
def test_whatever_changes_the_prompt_changes_its_tokens(more: dict[str, Any]) -> None:
    body = {"messages": [SYSTEM, USER]}
    assert chat_prompt(body) != chat_prompt(body | more)


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("Hello", [tokenize("Hello")]),
        ([1, 2], [[1, 2]]),
        (["Hello", "you"], [tokenize("Hello"), tokenize("you")]),
        ([[1], [2, 3]], [[1], [2, 3]]),
    ],
)
def test_a_completion_takes_text_and_ids_one_or_several(
    prompt: object, expected: list[list[int]]
) -> None:
    assert completion_prompts({"prompt": prompt}) == expected


@pytest.mark.parametrize("prompt", [None, 5, [], [-1], [1.5], [True], [[]], [{}], [[2**32]]])
def test_a_prompt_of_anything_else_is_refused(prompt: object) -> None:
    with pytest.raises(RequestRejected) as refusal:
        completion_prompts({"prompt": prompt})
    assert refusal.value.param == "prompt"


@pytest.mark.parametrize(
    "messages", [None, [], "Hello", ["Hello"], [{"content": "x"}], [{"role": "user", "content": 5}]]
)
def test_messages_of_anything_else_are_refused(messages: object) -> None:
    with pytest.raises(RequestRejected) as refusal:
        chat_prompt({"messages": messages})
    assert refusal.value.param == "messages"


@pytest.mark.parametrize("raw", [b"", b"[1]", b"{", b"\xff"])
def test_a_body_that_is_no_object_is_refused(raw: bytes) -> None:
    with pytest.raises(RequestRejected):
        parse_body(raw)


def test_another_model_is_not_found() -> None:
    check_model({"model": "m"}, "m")
    check_model({}, "m")
    with pytest.raises(NotFound) as refusal:
        check_model({"model": "n"}, "m")
    assert refusal.value.code == "model_not_found"
