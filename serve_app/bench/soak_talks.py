"""Conversations that never stop, each held against its client's own transcript."""

import asyncio
import time
from dataclasses import dataclass, field
from enum import StrEnum
from random import Random

from serve_app.bench.soak_client import Finding, Json, Lost, SoakClient, TryAgain, Wrong
from serve_app.bench.soak_oracles import OUTPUT_TOKENS, Oracle

FIRST_ID, LAST_ID = 300, 1500
"""Ordinary words of every vocabulary here."""
EXPIRY_LIMIT_S = 100.0
"""A restarted manager gives each context a minute."""
KEPT_S = 900


class Ending(StrEnum):
    """How a context goes before its conversation begins anew."""

    DELETED = "deleted"
    EXPIRED = "expired"


@dataclass(frozen=True, slots=True)
class Pace:
    """`think_s` is the mean pause between turns; past `most_tokens` a conversation begins anew."""

    think_s: float
    most_tokens: int


@dataclass(slots=True)
class Talk:
    """One user: a context after the other. `name`, `turns` and `ids` are of the present one."""

    number: int
    client: SoakClient
    model: str
    oracle: Oracle
    pace: Pace
    rng: Random
    ending: Ending | None = None
    last_turn_at: float = 0.0
    name: str = ""
    turns: int = 0
    ids: list[int] = field(default_factory=list)

    async def run(self, until: float) -> None:
        """Takes turns until that monotonic time; then compares once more, and the context goes."""
        while time.monotonic() < until:
            await asyncio.sleep(self.rng.expovariate(1 / self.pace.think_s))
            try:
                await self._next()
            except Finding as finding:
                self._tell(finding)
        if self.name:
            try:
                await self._compare()
                await self._end(Ending.DELETED)
            except Finding as finding:
                self._tell(finding)

    def _tell(self, finding: Finding) -> None:
        self.client.tally.found(finding, f"talk {self.number}, {self.turns} turns")
        self.name = ""

    async def _next(self) -> None:
        if not self.name:
            await self._create()
        await self._turn()
        if self.ending is not None:
            await self._end(self.ending)
        elif len(self.ids) > self.pace.most_tokens:
            await self._end(Ending.DELETED)

    async def _create(self) -> None:
        prompt = self._new_ids(100, 300)
        body = {"model": self.model, "prompt": prompt, "ttl": KEPT_S}
        sent = await self.client.retried(
            "create", lambda _: self.client.sent("POST", "/v1/context", (201,), json=body)
        )
        self.name, self.turns, self.ids = sent.json()["id"], 0, prompt
        self._counted("created")

    async def _turn(self) -> None:
        new = self._new_ids(4, 40)
        said = await self.client.retried("turn", lambda number: self._said(number, new))
        prompt = [*self.ids, *new]
        self.ids, self.turns = [*prompt, *said], self.turns + 1
        self._counted("turns")
        self.last_turn_at = time.monotonic()
        if self.oracle.is_due():
            self._counted("texts_compared")
            if (expected := await self.oracle.expected(prompt)) != said:
                raise Wrong(f"{said} is not {expected}")
            await self._compare()

    async def _said(self, number: int, new: list[int]) -> list[int]:
        """The ids of the answer; of one that was lost, what it must have been."""
        prompt = [*self.ids, *new]
        if number and await self._is_committed(len(prompt) + OUTPUT_TOKENS):
            self._counted("answers_lost")
            return await self.oracle.expected(prompt)
        return self.oracle.read(prompt, await self._asked(new))

    async def _asked(self, new: list[int]) -> Json:
        """The answer's choice; every other one is streamed."""
        is_stream = bool(self.rng.getrandbits(1))
        body = {"model": self.model, "prompt": new, "max_tokens": OUTPUT_TOKENS, "temperature": 0}
        body |= self.oracle.options | {"stream": is_stream}
        headers = {"X-Session-Id": self.name, "X-Session-Turn": str(self.turns)}
        sent = await self.client.sent("POST", "/v1/completions", (200,), json=body, headers=headers)
        if sent.headers["X-Warmpath-Reason"] == "kv_load":
            self._counted("loaded")
        return self.client.choice(sent.content, is_stream=is_stream)

    async def _is_committed(self, tokens: int) -> bool:
        seen = (await self.client.get(self.name)).json()
        if (seen["turns"], seen["tokens"]) == (self.turns + 1, tokens):
            return True
        self._hold(seen)
        return False

    async def _compare(self) -> None:
        seen = await self.client.retried("compare", lambda _: self.client.get(self.name))
        self._hold(seen.json())

    def _hold(self, seen: Json) -> None:
        theirs, ours = (seen["turns"], seen["tokens"]), (self.turns, len(self.ids))
        if theirs != ours:
            raise Lost(f"turns and tokens are {theirs}, not {ours}")

    async def _end(self, ending: Ending) -> None:
        await (self._deleted() if ending is Ending.DELETED else self._expired())
        self._counted(ending)
        self.name, self.ending = "", None

    async def _deleted(self) -> None:
        path = f"/v1/context/{self.name}"
        await self.client.retried(
            "delete",
            lambda number: self.client.sent("DELETE", path, (200, 404) if number else (200,)),
        )
        await self.client.retried("look", lambda _: self.client.get(self.name, 404))

    async def _expired(self) -> None:
        path, change = f"/v1/context/{self.name}", {"ttl": 1}
        await self.client.retried(
            "patch", lambda _: self.client.sent("PATCH", path, (200, 410), json=change)
        )
        deadline = time.monotonic() + EXPIRY_LIMIT_S
        while time.monotonic() < deadline:
            await asyncio.sleep(2)
            try:
                if (await self.client.get(self.name, 200, 410)).status_code == 410:
                    return
            except TryAgain:
                continue
        raise Lost("it did not expire")

    def _counted(self, what: str) -> None:
        self.client.tally.counts[what] += 1

    def _new_ids(self, least: int, most: int) -> list[int]:
        count = self.rng.randint(least, most)
        return [self.rng.randrange(FIRST_ID, LAST_ID) for _ in range(count)]
