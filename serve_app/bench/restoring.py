"""The next turn of conversations whose replica was killed: loaded from a store, or computed."""

import json
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import httpx
import msgspec
import ray

from router.serve.generations import find_index
from serve_app.bench.live import APPLICATION, LiveApplication, wait_until

NO_STORE = {"Cache-Control": "no-store"}
OUTPUT_TOKENS = 8
NEW_TOKENS = 24
STORED_WITHIN_S = 120.0
_QUIET_S = 2.0
_WARM_UP_TOKENS = 600
_FIRST_ID, _LAST_ID = 300, 1500
"""Ordinary words of the vocabulary."""


@dataclass(frozen=True, slots=True)
class Answered:
    """One turn. `text` are its ids."""

    ttft_ms: float
    cached_tokens: int
    replica: str
    reason: str
    text: tuple[int, ...]


@dataclass(slots=True)
class Talk:
    """A context with its ids so far; `headers` go along with all that is asked of it."""

    client: httpx.Client
    model: str
    ids: list[int]
    headers: dict[str, str]
    home: str = ""
    name: str = field(init=False)

    def __post_init__(self) -> None:
        body = {"model": self.model, "prompt": self.ids}
        made = self.client.post("/v1/context", json=body, headers=self.headers)
        made.raise_for_status()
        self.name = made.json()["id"]

    def turn(self, new: list[int]) -> Answered:
        headers = self.headers | {"X-Session-Id": self.name}
        answered = ask(self.client, self.model, new, headers)
        self.ids += [*new, *answered.text]
        self.home = answered.replica
        return answered

    def close(self) -> None:
        self.client.delete(f"/v1/context/{self.name}").raise_for_status()


@dataclass(slots=True)
class Outcome:
    """What the three kinds of turns took, and how many restored texts were those of a cold run."""

    warm: list[Answered] = field(default_factory=list)
    restored: list[Answered] = field(default_factory=list)
    cold: list[Answered] = field(default_factory=list)
    equal_texts: int = 0


def ask(
    client: httpx.Client, model: str, prompt: list[int], headers: dict[str, str], **more: Any
) -> Answered:
    """A streamed completion of a few tokens. Raises `httpx.HTTPError`."""
    body = {
        "model": model,
        "prompt": prompt,
        "max_tokens": OUTPUT_TOKENS,
        "ignore_eos": True,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_token_ids": True,
    } | more
    first_s, text = 0.0, list[int]()
    usage: dict[str, Any] = {}
    sent_s = time.perf_counter()
    with client.stream("POST", "/v1/completions", json=body, headers=headers) as answer:
        answer.raise_for_status()
        for event in _events(answer):
            first_s = first_s or time.perf_counter()
            text += [i for choice in event["choices"] for i in choice.get("token_ids") or ()]
            usage = event.get("usage") or usage
    details = usage["prompt_tokens_details"] or {}
    return Answered(
        1000 * (first_s - sent_s),
        details.get("cached_tokens") or 0,
        answer.headers["X-Warmpath-Replica"],
        answer.headers["X-Warmpath-Reason"],
        tuple(text),
    )


def restore_round(
    live: LiveApplication, client: httpx.Client, tokens: int, talks: int, rng: Random
) -> Outcome:
    """`talks` contexts that are stored and as many that are not; one replica killed; then the next
    turn of all that lived there, in alternation. Asked when another replica is up in its place, and
    what that one has loaded at its start is gone again: a turn loads for itself."""
    outcome = Outcome()
    kept = [_talk(live, client, tokens, rng, {}) for _ in range(talks)]
    lost = [_talk(live, client, tokens, rng, NO_STORE) for _ in range(talks)]
    outcome.warm = [talk.turn(_ids(rng, NEW_TOKENS)) for talk in [*kept, *lost]]
    wait_until_stored(live.model)
    victim = _home_of_most(kept, lost)
    live.kill_replica(victim)
    _warm_up(live, client, rng)
    live.reset_caches()
    for of_kept, of_lost in _pairs(kept, lost, victim):
        before = list(of_kept.ids)
        new = _ids(rng, NEW_TOKENS)
        restored = of_kept.turn(new)
        outcome.restored.append(restored)
        outcome.cold.append(of_lost.turn(_ids(rng, NEW_TOKENS)))
        unshared = {"cache_salt": f"{rng.getrandbits(64):x}"}
        reference = ask(client, live.model, before + new, NO_STORE, **unshared)
        outcome.equal_texts += reference.text == restored.text
    for talk in [*kept, *lost]:
        talk.close()
    return outcome


def wait_until_stored(model: str) -> None:
    """Until the index has heard of no more stored blocks for a while."""
    blocks, since_s = -1, 0.0

    def is_quiet() -> bool:
        nonlocal blocks, since_s
        now_s, known = time.monotonic(), _stored_blocks(model)
        if known != blocks:
            blocks, since_s = known, now_s
        return blocks > 0 and now_s - since_s >= _QUIET_S

    wait_until(is_quiet, STORED_WITHIN_S)


def _stored_blocks(model: str) -> int:
    actor = find_index(APPLICATION, model)
    stats = msgspec.msgpack.decode(ray.get(actor.stats.remote())) if actor is not None else {}
    return int(stats["index"]["stored_blocks"]) if stats else 0


def _talk(
    live: LiveApplication,
    client: httpx.Client,
    tokens: int,
    rng: Random,
    headers: dict[str, str],
) -> Talk:
    return Talk(client, live.model, _ids(rng, tokens), headers)


def _ids(rng: Random, count: int) -> list[int]:
    return [rng.randrange(_FIRST_ID, _LAST_ID) for _ in range(count)]


def _home_of_most(kept: Sequence[Talk], lost: Sequence[Talk]) -> str:
    homes, others = (Counter(talk.home for talk in talks) for talks in (kept, lost))
    return max(homes, key=lambda home: min(homes[home], others[home]))


def _pairs(kept: Sequence[Talk], lost: Sequence[Talk], victim: str) -> Iterator[tuple[Talk, Talk]]:
    orphans = ([talk for talk in talks if talk.home == victim] for talks in (kept, lost))
    return zip(*orphans, strict=False)


def _warm_up(live: LiveApplication, client: httpx.Client, rng: Random) -> None:
    """Both replicas have computed and joined the cluster before anything is timed."""
    for _ in range(4):
        talk = _talk(live, client, _WARM_UP_TOKENS, rng, {})
        talk.turn(_ids(rng, NEW_TOKENS))
        talk.close()
    wait_until_stored(live.model)


def _events(answer: httpx.Response) -> Iterator[dict[str, Any]]:
    for line in answer.iter_lines():
        if line.startswith("data: {"):
            event: dict[str, Any] = json.loads(line.removeprefix("data: "))
            yield event
