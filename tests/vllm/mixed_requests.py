"""Requests of every kind that an engine can answer from its cache, in a seeded order.

Some continue an earlier answer, so that the mix has to be told what was answered.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

BLOCK_SIZE = 32
COUNTS = {
    "chat turn": 50,
    "continuation": 30,
    "length": 35,
    "choices": 25,
    "list": 25,
    "text stream": 15,
    "prompt read": 12,
    "response": 8,
}
"""Of 200 requests. `prompt read`: the engine returns something of the prompt itself."""

_WORDS = ["amber", "birch", "cedar", "delta", "ember", "fjord", "grove", "heath", "inlet", "jetty"]
_CHAT, _COMPLETIONS, _RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"

Body = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Ask:
    """One call of one tenant."""

    kind: str
    path: str
    tenant: str
    body: Body

    @property
    def is_stream(self) -> bool:
        return bool(self.body.get("stream"))


@dataclass(slots=True)
class Talk:
    """What one client has said and heard: messages of a chat, or token ids."""

    tenant: str
    messages: list[Body] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)


class Mix:
    """`next_ask` and `hear` in turns. Everything is drawn from one seed."""

    def __init__(self, seed: int) -> None:
        self._draw = Random(seed)
        kinds = [kind for kind, count in COUNTS.items() for _ in range(count)]
        self._draw.shuffle(kinds)
        self._kinds = iter(kinds)
        self._systems = [self.text(60) for _ in range(3)]
        self._prefixes = [self.ids(3 * BLOCK_SIZE + 5 * n) for n in range(3)]
        self._chats = [self._chat() for _ in range(8)]
        self._continued = [Talk(self._tenant(), token_ids=self.ids(40 + n)) for n in range(6)]
        self._last: Talk | None = None
        self._makers: dict[str, Callable[[], tuple[str, Body]]] = {
            "length": self._of_any_length,
            "choices": self._with_choices,
            "list": self._list,
            "text stream": self._text_stream,
            "prompt read": self._prompt_read,
            "response": self._response,
        }

    def next_ask(self) -> Ask | None:
        """None after the last."""
        kind = next(self._kinds, None)
        if kind is None:
            return None
        self._last = None
        if kind == "chat turn":
            return self._chat_turn()
        if kind == "continuation":
            return self._continuation()
        path, body = self._makers[kind]()
        return self._asked(kind, path, self._tenant(), body)

    def hear(self, answer: Body) -> None:
        """What the engine answered to the last ask; not told of streams."""
        if self._last is None:
            return
        choice = answer["choices"][0]
        if self._last.messages:
            self._last.messages.append(
                {"role": "assistant", "content": choice["message"]["content"]}
            )
        else:
            self._last.token_ids += [*choice["token_ids"], *self.ids(self._draw.randrange(1, 20))]

    def text(self, words: int) -> str:
        return " ".join(self._draw.choices(_WORDS, k=words))

    def ids(self, tokens: int) -> list[int]:
        return [self._draw.randrange(300, 2000) for _ in range(tokens)]

    def _tenant(self) -> str:
        return self._draw.choice(["ann", "bob"])

    def _asked(self, kind: str, path: str, tenant: str, body: Body) -> Ask:
        limit = {"max_output_tokens" if path == _RESPONSES else "max_tokens": 1}
        return Ask(kind, path, tenant, {"model": "m", "temperature": 0} | limit | body)

    def _chat(self) -> Talk:
        system = {"role": "system", "content": self._draw.choice(self._systems)}
        return Talk(self._tenant(), [system])

    def _chat_turn(self) -> Ask:
        talk = self._last = self._draw.choice(self._chats)
        question = self.text(self._draw.randrange(3, 30))
        talk.messages.append({"role": "user", "content": question})
        body = {"messages": list(talk.messages), "max_tokens": self._draw.randrange(2, 12)}
        return self._asked("chat turn", _CHAT, talk.tenant, body)

    def _continuation(self) -> Ask:
        """Goes on from the very ids of the answer, which the engine holds as it made them."""
        talk = self._last = self._draw.choice(self._continued)
        body = {"prompt": list(talk.token_ids), "max_tokens": self._draw.randrange(20, 40)}
        ids = {"return_token_ids": True, "ignore_eos": True}
        return self._asked("continuation", _COMPLETIONS, talk.tenant, body | ids)

    def _prompt(self) -> list[int]:
        """A shared prefix cut somewhere around a block's end, and perhaps an ending of its own."""
        prefix = self._draw.choice(self._prefixes)
        cut = BLOCK_SIZE * self._draw.randrange(1, 4) + self._draw.choice([-1, 0, 1, 7])
        own = self._draw.choice([0, 0, 1, BLOCK_SIZE - 1, BLOCK_SIZE, 2 * BLOCK_SIZE + 3])
        return prefix[:cut] + self.ids(own)

    def _of_any_length(self) -> tuple[str, Body]:
        salt = self._draw.choice([{}, {}, {"cache_salt": "own"}])
        return _COMPLETIONS, {"prompt": self._prompt(), **salt}

    def _with_choices(self) -> tuple[str, Body]:
        more = {"n": self._draw.choice([2, 2, 3]), "temperature": 0.8}
        if self._draw.random() < 0.5:
            return _COMPLETIONS, {"prompt": self._prompt(), **more}
        messages = [{"role": "user", "content": self._draw.choice(self._systems)}]
        return _CHAT, {"messages": messages, **more}

    def _list(self) -> tuple[str, Body]:
        prompts = [self._prompt() for _ in range(self._draw.choice([2, 3, 4]))]
        more = self._draw.choice([{}, {}, {"n": 2, "temperature": 0.8}])
        return _COMPLETIONS, {"prompt": [*prompts, prompts[0]], **more}

    def _text_stream(self) -> tuple[str, Body]:
        prompt = self._draw.choice(self._systems) + self.text(self._draw.randrange(1, 9))
        return _COMPLETIONS, {
            "prompt": prompt,
            "stream": True,
            "stream_options": {"include_usage": True},
        }

    def _prompt_read(self) -> tuple[str, Body]:
        more = self._draw.choice(
            [{"prompt_logprobs": 1}, {"echo": True}, {"echo": True, "logprobs": 1}]
        )
        return _COMPLETIONS, {"prompt": self._draw.choice(self._systems), **more}

    def _response(self) -> tuple[str, Body]:
        return _RESPONSES, {"input": self._draw.choice(self._systems), "max_output_tokens": 4}
