"""What every route's answer is made of, and the seam between generation and its JSON."""

from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec

from replicas.sim.text import piece

DONE = b"data: [DONE]\n\n"
Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of one answer; `cached_tokens` of the prompts were not computed."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int

    def to_json(self) -> Json:
        return {
            "prompt_tokens": self.prompt_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "completion_tokens": self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        }


@dataclass(slots=True)
class Delta:
    """What one choice gained: in one pass when streamed, in all of them otherwise.

    `finish_reason` is `None` while more follows. `offset` is where `text` begins in the choice.
    """

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    offset: int = 0

    def add(self, more: "Delta") -> None:
        """Appends what came after."""
        self.text += more.text
        self.token_ids += more.token_ids
        self.finish_reason, self.stop_reason = more.finish_reason, more.stop_reason


class Answer(Protocol):
    """One route's way to write an answer. Choices are numbered prompt by prompt."""

    def opening(self) -> bytes:
        """Events before the first token's."""
        ...

    def delta(self, choice: int, delta: Delta, usage: Usage | None) -> bytes:
        """The event of one choice's tokens; `usage` where the client wants it in each."""
        ...

    def closing(self, usage: Usage) -> bytes:
        """Events after the last token's."""
        ...

    def document(self, choices: list[Delta], usage: Usage) -> bytes:
        """The whole answer, not streamed."""
        ...


def sse(value: Json, event: str | None = None) -> bytes:
    """One server-sent event."""
    name = b"" if event is None else b"event: %b\n" % event.encode()
    return b"%bdata: %b\n\n" % (name, msgspec.json.encode(value))


def logprob(token_id: int, rank: int = 0) -> float:
    """A plausible, deterministic log probability: less for every lower rank."""
    return -0.1 - rank - (token_id % 64) / 256


def ranked(token_id: int, top: int) -> list[tuple[str, float]]:
    """The token itself and the alternatives below it, `top` in all, most likely first."""
    return [(piece(token_id + rank), logprob(token_id, rank)) for rank in range(top)]
