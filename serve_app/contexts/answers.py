"""A turn's answer on its way to the client: read along, and its end held back. Pure.

The end goes out only after the turn is committed, so that whoever saw it has a committed turn.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec

from router.core.errors import EngineError

Json = dict[str, Any]

_ABNORMAL = frozenset({"abort", "error"})
_DATA = b"data: "
_REWRITTEN = {"history_rewritten": True}


class _Function(msgspec.Struct):
    name: str | None = None
    arguments: str | None = None


class _ToolCall(msgspec.Struct):
    index: int | None = None
    id: str | None = None
    function: _Function | None = None


class _Words(msgspec.Struct):
    """A message, or what one event adds to it."""

    content: str | None = None
    reasoning: str | None = None
    tool_calls: list[_ToolCall] | None = None


class _Choice(msgspec.Struct):
    finish_reason: str | None = None
    delta: _Words | None = None
    message: _Words | None = None


class _Body(msgspec.Struct):
    choices: list[_Choice] = []


@dataclass(slots=True)
class _Call:
    id: str | None = None
    name: str = ""
    arguments: str = ""

    def add(self, call: _ToolCall) -> None:
        self.id = self.id or call.id
        if call.function is not None:
            self.name += call.function.name or ""
            self.arguments += call.function.arguments or ""

    def to_json(self) -> Json:
        function = {"name": self.name, "arguments": self.arguments}
        return {"id": self.id, "type": "function", "function": function}


@dataclass(slots=True)
class Said:
    """The assistant's message so far."""

    content: str = ""
    reasoning: str = ""
    calls: dict[int, _Call] = field(default_factory=dict)
    finish_reason: str | None = None

    def add(self, choice: _Choice) -> None:
        self.finish_reason = choice.finish_reason or self.finish_reason
        words = choice.delta or choice.message
        if words is None:
            return
        self.content += words.content or ""
        self.reasoning += words.reasoning or ""
        for place, call in enumerate(words.tool_calls or ()):
            index = place if call.index is None else call.index
            self.calls.setdefault(index, _Call()).add(call)

    def message(self) -> Json:
        """As a template takes it. Raises `EngineError` where the answer did not end normally."""
        if self.finish_reason is None or self.finish_reason in _ABNORMAL:
            raise EngineError("The answer was broken off.")
        message: Json = {"role": "assistant", "content": self.content}
        if self.reasoning:
            message["reasoning"] = self.reasoning
        if self.calls:
            message["tool_calls"] = [call.to_json() for _, call in sorted(self.calls.items())]
        return message


class AnswerReader(Protocol):
    def read(self, part: bytes) -> bytes:
        """What of it may go out at once; maybe nothing."""
        ...

    def ending(self, *, is_rewritten: bool) -> bytes:
        """What was held back."""
        ...

    def message(self) -> Json:
        """The whole answer; see `Said.message`."""
        ...


class StreamReader:
    """Server-sent events: from the one that names the reason on, they are held back."""

    def __init__(self) -> None:
        self._said = Said()
        self._held: list[bytes] = []

    def read(self, part: bytes) -> bytes:
        shown: list[bytes] = []
        for event in _events(part):
            self._follow(event)
            (self._held if self._said.finish_reason else shown).append(event)
        return b"".join(shown)

    def ending(self, *, is_rewritten: bool) -> bytes:
        if is_rewritten:
            place = max(i for i, event in enumerate(self._held) if _is_json(event))
            body = _marked(self._held[place].removeprefix(_DATA))
            self._held[place] = _DATA + body + b"\n\n"
        return b"".join(self._held)

    def message(self) -> Json:
        return self._said.message()

    def _follow(self, event: bytes) -> None:
        if _is_json(event):
            for choice in _BODY.decode(event.removeprefix(_DATA)).choices:
                self._said.add(choice)


class DocumentReader:
    """One JSON document, held back as a whole."""

    def __init__(self) -> None:
        self._held = b""

    def read(self, part: bytes) -> bytes:
        self._held += part
        return b""

    def ending(self, *, is_rewritten: bool) -> bytes:
        return _marked(self._held) if is_rewritten else self._held

    def message(self) -> Json:
        said = Said()
        for choice in _BODY.decode(self._held).choices:
            said.add(choice)
        return said.message()


def _events(part: bytes) -> Iterator[bytes]:
    return (event + b"\n\n" for event in part.split(b"\n\n") if event)


def _is_json(event: bytes) -> bool:
    return event.startswith(_DATA + b"{")


def _marked(body: bytes) -> bytes:
    """Beside its usage."""
    return msgspec.json.encode(msgspec.json.decode(body) | _REWRITTEN)


_BODY = msgspec.json.Decoder(_Body)
