"""Sends turns over HTTP as any OpenAI client does, and keeps what came back of each."""

import json
import time
from dataclasses import dataclass

import aiohttp

from serve_app.bench.conversations import Turn

SESSION_HEADER = "X-Session-Id"
TIMEOUT_S = 600.0


@dataclass(frozen=True, slots=True)
class Answered:
    """One turn and its answer. `sent_s` is of `time.perf_counter`; what failed has status 0.

    `replica` and `reason` are what the application says of its decision.
    """

    turn: Turn
    sent_s: float
    status: int = 0
    ttft_ms: float = 0.0
    total_ms: float = 0.0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    forecast_tokens: int = 0
    replica: str = ""
    reason: str = ""

    @property
    def is_ok(self) -> bool:
        return self.status == 200

    @property
    def computed_tokens(self) -> int:
        return self.prompt_tokens - self.cached_tokens

    @property
    def tpot_ms(self) -> float:
        """(end - first token) / (tokens - 1); 0 for one token."""
        return (self.total_ms - self.ttft_ms) / max(self.output_tokens - 1, 1)


@dataclass(frozen=True, slots=True)
class ChatClient:
    """One model behind one address; every answer has `output_tokens` tokens."""

    session: aiohttp.ClientSession
    url: str
    model: str
    output_tokens: int

    async def ask(self, turn: Turn, session_id: str | None) -> Answered:
        """Streams one answer. A refusal is an answer; a broken connection has status 0."""
        headers = {} if session_id is None else {SESSION_HEADER: session_id}
        sent_s = time.perf_counter()
        try:
            async with self.session.post(
                f"{self.url}/v1/chat/completions", json=self._body(turn), headers=headers
            ) as response:
                return await _read(response, turn, sent_s)
        except aiohttp.ClientError:
            return Answered(turn, sent_s)

    async def token_ids(self, turn: Turn) -> list[int]:
        """As the application renders it. Raises `aiohttp.ClientError`."""
        body = {"model": self.model, "messages": turn.messages}
        async with self.session.post(f"{self.url}/tokenize", json=body) as response:
            response.raise_for_status()
            ids: list[int] = (await response.json())["tokens"]
            return ids

    def _body(self, turn: Turn) -> dict[str, object]:
        return {
            "model": self.model,
            "messages": turn.messages,
            "max_tokens": self.output_tokens,
            "ignore_eos": True,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }


def open_session() -> aiohttp.ClientSession:
    timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout)


async def _read(response: aiohttp.ClientResponse, turn: Turn, sent_s: float) -> Answered:
    if response.status != 200:
        return Answered(turn, sent_s, response.status)
    first_s, last = 0.0, b"{}"
    async for line in response.content:
        if line.startswith(b"data: {"):
            first_s = first_s or time.perf_counter()
            last = line[6:]
    ended_s = time.perf_counter()
    usage = json.loads(last).get("usage")
    if usage is None:  # an error event ended the stream
        return Answered(turn, sent_s)
    headers = response.headers
    return Answered(
        turn,
        sent_s,
        response.status,
        ttft_ms=1000 * (first_s - sent_s),
        total_ms=1000 * (ended_s - sent_s),
        prompt_tokens=usage["prompt_tokens"],
        cached_tokens=(usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0,
        output_tokens=usage["completion_tokens"],
        forecast_tokens=int(headers.get("X-Warmpath-Forecast-Tokens", 0)),
        replica=headers.get("X-Warmpath-Replica", ""),
        reason=headers.get("X-Warmpath-Reason", ""),
    )
