"""The traffic of the serving benchmarks: conversations on a few shared system prompts. Seeded.

Scripted: each turn brings the earlier ones along with written answers, so that every arm of a
comparison gets the very same prompts whatever its engines say.
"""

import heapq
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from random import Random

Message = dict[str, str]
CountTokens = Callable[[str], int]

_LETTERS = "abcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True, slots=True)
class Shape:
    """How much of what; lengths in tokens, without what the chat template adds."""

    conversations: int
    turns: int
    systems: int
    system_tokens: int
    question_tokens: int
    answer_tokens: int


@dataclass(frozen=True, slots=True)
class Conversation:
    """`system` is the number of its system prompt, from 0. `messages` is the whole script."""

    name: str
    system: int
    messages: tuple[Message, ...]

    @property
    def turns(self) -> int:
        return len(self.messages) // 2


@dataclass(frozen=True, slots=True)
class Turn:
    """One request: `number` from 0, `messages` up to and with its question."""

    conversation: Conversation
    number: int

    @property
    def messages(self) -> tuple[Message, ...]:
        return self.conversation.messages[: 2 + 2 * self.number]


class Author:
    """Writes texts that share nothing with each other."""

    def __init__(self, rng: Random, count_tokens: CountTokens) -> None:
        self._rng = rng
        self._count_tokens = count_tokens

    def text(self, tokens: int) -> str:
        """At least that many tokens, and hardly more."""
        words: list[str] = []
        while (missing := tokens - self._count_tokens(" ".join(words))) > 0:
            words += (self._word() for _ in range(max(1, missing // 4)))
        return " ".join(words)

    def systems(self, shape: Shape) -> list[str]:
        return [self.text(shape.system_tokens) for _ in range(shape.systems)]

    def conversation(self, name: str, system: int, text: str, shape: Shape) -> Conversation:
        messages = [{"role": "system", "content": text}]
        for _ in range(shape.turns):
            messages += (
                {"role": "user", "content": self.text(shape.question_tokens)},
                {"role": "assistant", "content": self.text(shape.answer_tokens)},
            )
        return Conversation(name, system, tuple(messages[:-1]))

    def _word(self) -> str:
        return "".join(self._rng.choices(_LETTERS, k=self._rng.randint(3, 6)))


def zipf(systems: int) -> list[float]:
    """Shares in proportion to 1 / rank."""
    total = sum(1 / rank for rank in range(1, systems + 1))
    return [1 / rank / total for rank in range(1, systems + 1)]


def with_hot(shares: Sequence[float], hot: int, share: float) -> list[float]:
    """The same, but that one of them gets `share` and the others keep their proportions."""
    rest = 1 - shares[hot]
    return [
        share if system == hot else old * (1 - share) / rest for system, old in enumerate(shares)
    ]


def drawn(shares: Sequence[float], count: int, rng: Random) -> list[int]:
    """`count` systems in these shares, each within one of its exact number, in random order."""
    start, systems = rng.random(), []
    for number in range(count):
        at = (number + start) / count
        systems.append(_at_share(shares, at))
    rng.shuffle(systems)
    return systems


def taking_turns(conversations: Sequence[Conversation], live: int, rng: Random) -> Iterator[Turn]:
    """All turns, as `live` users make them who have one talk at a time.

    All are equally quick on the average, and never twice as quick as they were before.
    """
    waiting = [Turn(talk, 0) for talk in reversed(conversations)]
    due = [(rng.random(), user) for user in range(live)]
    next_turns: dict[int, Turn] = {}
    while due:
        at, user = heapq.heappop(due)
        turn = next_turns.pop(user, None) or (waiting.pop() if waiting else None)
        if turn is None:
            continue
        yield turn
        heapq.heappush(due, (at + rng.uniform(0.5, 1.5), user))
        if turn.number + 1 < turn.conversation.turns:
            next_turns[user] = Turn(turn.conversation, turn.number + 1)


def _at_share(shares: Sequence[float], at: float) -> int:
    for system, share in enumerate(shares):
        at -= share
        if at < 0:
            return system
    return len(shares) - 1
