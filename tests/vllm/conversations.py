"""Conversations kept as contexts by real engines, each turn held to an uninterrupted run."""

from dataclasses import dataclass, field
from itertools import count
from typing import Any

import httpx

from serve_app.observe.decision_headers import alias
from tests.serve.cached_app import BLOCK_SIZE, until
from tests.serve.context_calls import Caller, bearer
from tests.vllm.real_app import RealApp

OBJECT_BLOCKS = 2
OBJECT_TOKENS = OBJECT_BLOCKS * BLOCK_SIZE
"""Of one stored object, where the application is configured so."""
NOT_KEPT = {"cache-control": "no-store"}
OPTIONS = {"max_tokens": 8, "ignore_eos": True, "return_token_ids": True}
_numbers = count()


def next_id(kind: str) -> str:
    """For one request or salt; never the same again."""
    return f"{kind}-{next(_numbers)}"


@dataclass(slots=True)
class Conversation:
    """One context with all its ids so far, and what the whole of them give at once."""

    app: RealApp
    caller: Caller
    ids: list[int]
    headers: dict[str, str] = field(default_factory=dict)
    name: str = field(init=False)

    def __post_init__(self) -> None:
        self.name = self.caller.created(prompt=self.ids, headers=self.headers)

    def turn(self, *new: int) -> dict[str, Any]:
        """Checks the answer and its headers; returns its line in the access log, with the usage's
        figure."""
        number = next_id("turn")
        headers = {"X-Request-Id": number} | self.headers
        answer = self.caller.complete(self.name, list(new), headers=headers, **OPTIONS)
        assert answer.status_code == 200, answer.text
        (choice,) = answer.json()["choices"]
        self.ids += new
        assert choice["token_ids"] == self.uninterrupted()
        self.ids += choice["token_ids"]
        details = answer.json()["usage"]["prompt_tokens_details"]
        line = self.app.log.line(number)
        (forecast_blocks,) = line["forecast_blocks"]
        assert answer.headers["x-warmpath-replica"] == alias(line["replica"])
        assert int(answer.headers["x-warmpath-forecast-tokens"]) == forecast_blocks * BLOCK_SIZE
        assert answer.headers["x-warmpath-reason"] == line["reason"]
        return line | {"usage": details["cached_tokens"]}

    def uninterrupted(self) -> list[int]:
        """By the same model, with all the ids at once, under a salt that shares no block."""
        salt = {"cache_salt": next_id("reference")}
        body = {"model": "m", "prompt": self.ids, "temperature": 0} | OPTIONS | salt
        headers = bearer(self.caller.tenant) | NOT_KEPT
        answer = self.caller.http.post("/v1/completions", json=body, headers=headers)
        assert answer.status_code == 200, answer.text
        return list(answer.json()["choices"][0]["token_ids"])

    def until_stored(self) -> None:
        until(
            lambda: self.caller.get(self.name)["cache"]["stored_tokens"] >= self.stored_tokens, 60
        )

    @property
    def stored_tokens(self) -> int:
        """Of the objects that are full, all but the last answer's last token, which was never
        computed."""
        return (len(self.ids) - 1) // OBJECT_TOKENS * OBJECT_TOKENS


def talk(app: RealApp, http: httpx.Client, seed: int, tokens: int, **headers: str) -> Conversation:
    ids = [300 + seed, *range(400, 400 + tokens - 1)]
    return Conversation(app, Caller(http, "m"), ids, headers)
