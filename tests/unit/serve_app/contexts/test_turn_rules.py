"""What a turn may not ask for."""

from typing import Any

import pytest

from router.contexts.messages import Kind
from router.core.errors import InvalidRequest, ToolsChanged
from serve_app.allow_list import ApiRoute
from serve_app.contexts.document import Document, Settings
from serve_app.contexts.turn_rules import check_turn, kind_of, with_own_settings

HI = [{"role": "user", "content": "hi"}]
TOOLS = [{"type": "function", "function": {"name": "f"}}]
OWN = Document(Settings(TOOLS, {"a": 1}), ())


def test_each_route_has_its_kind_and_responses_none() -> None:
    assert kind_of(ApiRoute.CHAT) is Kind.CHAT
    assert kind_of(ApiRoute.COMPLETIONS) is Kind.PROMPT
    with pytest.raises(InvalidRequest, match="/v1/responses"):
        kind_of(ApiRoute.RESPONSES)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("n", 2),
        ("n", 0),
        ("best_of", 2),
        ("echo", True),
        ("suffix", "s"),
        ("use_beam_search", True),
        ("continue_final_message", True),
        ("add_generation_prompt", False),
        ("return_prompt_text", True),
        ("truncate_prompt_tokens", 5),
        ("truncate_prompt_tokens", -1),
        ("messages", []),
        ("messages", "hi"),
    ],
)
def test_one_continuation_of_what_is_there_is_all_that_a_turn_may_ask_for(
    field: str, value: object
) -> None:
    with pytest.raises(InvalidRequest) as refused:
        check_turn(Kind.CHAT, {"messages": HI} | {field: value})
    assert refused.value.param == field


@pytest.mark.parametrize("prompt", [None, ["a", "b"], [[1], [2]], 7, {"a": 1}])
def test_one_prompt_at_a_time(prompt: object) -> None:
    with pytest.raises(InvalidRequest) as refused:
        check_turn(Kind.PROMPT, {"prompt": prompt})
    assert refused.value.param == "prompt"


@pytest.mark.parametrize("body", [{}, {"n": 1, "best_of": 1, "echo": False, "suffix": None}])
def test_what_asks_for_nothing_special_passes(body: dict[str, Any]) -> None:
    check_turn(Kind.CHAT, {"messages": HI} | body)
    check_turn(Kind.PROMPT, {"prompt": [1, 2]} | body)
    check_turn(Kind.PROMPT, {"prompt": "a"} | body)


def test_a_turn_has_the_contexts_own_settings() -> None:
    body = with_own_settings({"messages": HI}, OWN)
    assert (body["tools"], body["chat_template_kwargs"]) == (TOOLS, {"a": 1})
    assert with_own_settings({"tools": TOOLS}, OWN)["tools"] == TOOLS


def test_its_own_template_arguments_hold_for_the_turn() -> None:
    assert with_own_settings({"chat_template_kwargs": {}}, OWN)["chat_template_kwargs"] == {}


@pytest.mark.parametrize(
    ("own", "told"),
    [(TOOLS, []), (TOOLS, [*TOOLS, *TOOLS]), (None, TOOLS)],
)
def test_other_tools_are_refused(own: Any, told: Any) -> None:
    with pytest.raises(ToolsChanged):
        with_own_settings({"tools": told}, Document(Settings(own), ()))


def test_no_tools_are_the_same_however_they_are_written() -> None:
    assert with_own_settings({"tools": []}, Document(Settings(), ()))["tools"] is None
