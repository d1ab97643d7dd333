"""Answers read along, their end held back."""

import json
from typing import Any

import pytest

from router.core.errors import EngineError
from serve_app.contexts.answers import DocumentReader, StreamReader

DONE = b"data: [DONE]\n\n"


def event(finish_reason: str | None = None, **delta: Any) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
    return b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n"


USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":3}}\n\n'


def call(index: int, **function: str) -> dict[str, Any]:
    return {"index": index, "id": f"call-{index}", "function": function}


def test_what_comes_before_the_end_goes_out_at_once() -> None:
    reader = StreamReader()
    assert reader.read(event(role="assistant", content="")) == event(role="assistant", content="")
    assert reader.read(event(content="a")) == event(content="a")


@pytest.mark.parametrize("parts", [1, 2])
def test_the_end_is_held_back_with_all_that_follows_it(parts: int) -> None:
    reader = StreamReader()
    last = event("stop", content="b")
    items = [last, USAGE + DONE] if parts == 2 else [event(content="a") + last + USAGE + DONE]
    shown = b"".join(map(reader.read, items))
    assert shown == (b"" if parts == 2 else event(content="a"))
    assert reader.ending(is_rewritten=False) == last + USAGE + DONE


def test_a_text_that_quotes_a_finish_reason_ends_nothing() -> None:
    reader = StreamReader()
    quoting = event(content='"finish_reason":"stop"')
    assert reader.read(quoting) == quoting


@pytest.mark.parametrize("usage", [b"", USAGE])
def test_a_rewritten_history_is_told_in_the_last_event(usage: bytes) -> None:
    reader = StreamReader()
    reader.read(event("stop") + usage + DONE)
    *_, last, done, _ = reader.ending(is_rewritten=True).split(b"\n\n")
    assert (json.loads(last.removeprefix(b"data: "))["history_rewritten"], done + b"\n\n") == (
        True,
        DONE,
    )


def test_a_streamed_message_is_put_together() -> None:
    reader = StreamReader()
    for part in (
        event(role="assistant", content=""),
        event(reasoning="think"),
        event(content="it "),
        event(content="is"),
        event(tool_calls=[call(0, name="f", arguments="")]),
        event(tool_calls=[{"index": 0, "function": {"arguments": '{"a"'}}]),
        event(tool_calls=[{"index": 0, "function": {"arguments": ":1}"}}]),
        event(tool_calls=[call(1, name="g", arguments="{}")]),
        event("tool_calls") + DONE,
    ):
        reader.read(part)
    assert reader.message() == {
        "role": "assistant",
        "content": "it is",
        "reasoning": "think",
        "tool_calls": [
            {"id": "call-0", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}},
            {"id": "call-1", "type": "function", "function": {"name": "g", "arguments": "{}"}},
        ],
    }


def document(finish_reason: str | None = "stop", **message: Any) -> bytes:
    choice = {"index": 0, "message": message, "finish_reason": finish_reason}
    return json.dumps({"choices": [choice], "usage": {"prompt_tokens": 3}}).encode()


def test_a_document_is_held_back_whole_and_read_alike() -> None:
    reader = DocumentReader()
    calls = [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
    whole = document("tool_calls", content=None, tool_calls=calls)
    assert reader.read(whole) == b""
    assert reader.message() == {"role": "assistant", "content": "", "tool_calls": calls}
    assert reader.ending(is_rewritten=False) == whole
    assert json.loads(reader.ending(is_rewritten=True)) == json.loads(whole) | {
        "history_rewritten": True
    }


@pytest.mark.parametrize("finish_reason", [None, "abort", "error"])
def test_an_answer_that_was_broken_off_is_no_message(finish_reason: str | None) -> None:
    streamed, whole = StreamReader(), DocumentReader()
    streamed.read(event(finish_reason, content="a"))
    whole.read(document(finish_reason, content="a"))
    for reader in (streamed, whole):
        with pytest.raises(EngineError):
            reader.message()
