"""A client of contexts under faults: it tries what is documented again, and tells all else."""

import asyncio
import json
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import httpx

RETRY_S = 0.5
_GATEWAY = frozenset({502, 503, 504})
_WORTH_ANOTHER_TRY = frozenset(
    {(500, "engine_error"), (409, "context_busy"), (409, "turn_conflict")}
)
_MOST_NOTES = 40

Json = dict[str, Any]
T = TypeVar("T")


class TryAgain(Exception):
    """A documented refusal, or a connection that broke; what was asked may have been done."""


class Finding(Exception):
    """What must not happen; the class's name is its kind."""


class Surprising(Finding):
    """An answer that is documented nowhere."""


class Lost(Finding):
    """The server does not have what its client has."""


class Wrong(Finding):
    """A text is not what the model says after these ids."""


class Stuck(Finding):
    """Nothing that may be tried again has succeeded for too long."""


@dataclass(slots=True)
class Tally:
    """What became of all conversations. `notes` are the first findings in words."""

    counts: Counter[str] = field(default_factory=Counter)
    refusals: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)

    def found(self, finding: Finding, who: str) -> None:
        kind = type(finding).__name__.lower()
        self.counts[kind] += 1
        if len(self.notes) < _MOST_NOTES:
            self.notes.append(f"{kind}: {who}: {finding}")


@dataclass(frozen=True, slots=True)
class SoakClient:
    """Of one application; any number of conversations share it."""

    http: httpx.AsyncClient
    tally: Tally
    stuck_after_s: float

    async def retried(self, what: str, attempt: Callable[[int], Awaitable[T]]) -> T:
        """The first success; `attempt` gets its number, from 0. Raises `Stuck`."""
        deadline, number = time.monotonic() + self.stuck_after_s, 0
        while True:
            try:
                return await attempt(number)
            except TryAgain as error:
                if time.monotonic() > deadline:
                    raise Stuck(f"{what}: {error} at try {number + 1}") from error
            number += 1
            self.tally.counts["retried"] += 1
            await asyncio.sleep(RETRY_S)

    async def get(self, name: str, *statuses: int) -> httpx.Response:
        return await self.sent("GET", f"/v1/context/{name}", statuses or (200,))

    async def sent(
        self, method: str, path: str, statuses: tuple[int, ...], **more: Any
    ) -> httpx.Response:
        """An answer of one of these statuses. Raises `TryAgain` or a finding."""
        try:
            answer = await self.http.request(method, path, **more)
        except httpx.TransportError as error:
            self.tally.refusals[type(error).__name__] += 1
            raise TryAgain(repr(error)) from error
        if answer.status_code in statuses:
            return answer
        raise self.refused(answer.status_code, answer.content)

    def refused(self, status: int, body: bytes) -> Exception:
        """What an answer's error means to whoever asked."""
        code = _code(body)
        self.tally.refusals[f"{status} {code}"] += 1
        shown = f"{status} {body[:200]!r}"
        if status in _GATEWAY or (status, code) in _WORTH_ANOTHER_TRY:
            return TryAgain(shown)
        return Lost(shown) if status in (404, 410) else Surprising(shown)

    def choice(self, body: bytes, *, is_stream: bool) -> Json:
        """The only one of a completion, its streamed parts joined. Raises like `sent`."""
        if not is_stream:
            (choice,) = json.loads(body)["choices"]
            return dict(choice)
        whole: Json = {"text": "", "token_ids": [], "finish_reason": None}
        for line in body.splitlines():
            if line.startswith(b"data: {"):
                self._add(json.loads(line.removeprefix(b"data: ")), whole)
        if whole["finish_reason"] is None:
            self.tally.refusals["a stream without an end"] += 1
            raise TryAgain("a stream without an end")
        return whole

    def _add(self, event: Json, whole: Json) -> None:
        if "error" in event:
            status = 503 if event["error"]["type"] == "server_error" else 400
            raise self.refused(status, json.dumps(event).encode())
        for choice in event["choices"]:
            whole["text"] += choice["text"]
            whole["token_ids"] += choice.get("token_ids") or []
            whole["finish_reason"] = choice["finish_reason"] or whole["finish_reason"]


def _code(body: bytes) -> str | None:
    """None for an answer that is not of the application, such as the proxy's."""
    try:
        return str(json.loads(body)["error"]["code"])
    except (ValueError, KeyError, TypeError):
        return None
