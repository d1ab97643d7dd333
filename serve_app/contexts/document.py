"""What a chat's template needs besides token ids, as the context manager keeps it for us. Pure.

JSON lines, so that a turn appends: first the settings, then one message a line, as its client or
the model wrote it.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import msgspec

Json = dict[str, Any]


class Settings(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a context is created with and keeps."""

    tools: list[Json] | None = None
    chat_template_kwargs: Json | None = None


class Line(msgspec.Struct, frozen=True, omit_defaults=True):
    """`is_answer`: the model wrote it, so the ids that follow it are not those of the template."""

    message: Json
    is_answer: bool = False


@dataclass(frozen=True, slots=True)
class Document:
    """A chat up to its last committed turn."""

    settings: Settings
    lines: tuple[Line, ...]

    @property
    def messages(self) -> list[Json]:
        return [line.message for line in self.lines]

    @property
    def ends_in_answer(self) -> bool:
        return bool(self.lines) and self.lines[-1].is_answer


def opening(settings: Settings, messages: Iterable[Json]) -> bytes:
    """The document of a chat without a turn."""
    return msgspec.json.encode(settings) + appended(map(Line, messages))


def appended(lines: Iterable[Line]) -> bytes:
    """What a turn adds to a document."""
    return b"".join(b"\n" + msgspec.json.encode(line) for line in lines)


def read(document: bytes) -> Document:
    """Of what `opening` and `appended` made. O(bytes)."""
    settings, *lines = document.split(b"\n")
    return Document(_SETTINGS.decode(settings), tuple(map(_LINE.decode, lines)))


_SETTINGS = msgspec.json.Decoder(Settings)
_LINE = msgspec.json.Decoder(Line)
