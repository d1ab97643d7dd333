"""The tiny model's chat template, by what a model would read."""

from typing import Any

import pytest
from jinja2 import Environment
from jinja2.ext import loopcontrols

from replicas.engines.vllm.tiny_text import CHAT_TEMPLATE

TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}


def render(messages: list[dict[str, Any]], **options: Any) -> str:
    environment = Environment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    template = environment.from_string(CHAT_TEMPLATE)
    return template.render(messages=messages, bos_token="<|begin|>", **options)


@pytest.mark.parametrize("role", ["system", "user", "assistant", "tool"])
def test_text_parts_read_like_one_string(role: str) -> None:
    parts = [{"type": "text", "text": "one "}, {"type": "text", "text": "two"}]
    assert render([{"role": role, "content": parts}]) == render(
        [{"role": role, "content": "one two"}]
    )


def test_a_conversation_is_a_prefix_of_its_next_turn() -> None:
    talk = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    longer = [*talk, {"role": "assistant", "content": "Hello"}, {"role": "user", "content": "Bye"}]
    assert render(longer).startswith(render(talk, add_generation_prompt=True))


def test_tools_stand_in_the_system_turn_after_its_text() -> None:
    text = render([{"role": "system", "content": "Be brief."}], tools=[TOOL])
    assert text.count("<|im_start|>system") == 1
    assert text.index("Be brief.") < text.index('"name": "add"')


def test_tools_without_a_system_message_get_a_system_turn() -> None:
    text = render([{"role": "user", "content": "Hi"}], tools=[TOOL])
    assert text.startswith("<|begin|><|im_start|>system\n")
    assert '"name": "add"' in text


@pytest.mark.parametrize("arguments", [{"a": 1}, '{"a": 1}'], ids=["object", "text"])
def test_a_past_tool_call_is_shown_in_hermes_style(arguments: Any) -> None:
    call = {"type": "function", "function": {"name": "add", "arguments": arguments}}
    text = render([{"role": "assistant", "content": None, "tool_calls": [call]}])
    assert '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>' in text


def test_the_last_message_can_be_continued() -> None:
    text = render([{"role": "assistant", "content": "Once"}], continue_final_message=True)
    assert text.endswith("Once")
