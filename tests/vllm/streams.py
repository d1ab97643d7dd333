"""Streams that are watched while something breaks."""

import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import count

import httpx

from tests.serve.cached_app import until
from tests.vllm.real_app import bearer

STREAMS = 20
TOKENS = 150
_numbers = count()


@dataclass(slots=True)
class Stream:
    """The data of all events so far; `failure` is what the connection ended with, if not well."""

    number: int = field(default_factory=_numbers.__next__)
    events: list[str] = field(default_factory=list)
    begun_s: float | None = None
    ended_s: float | None = None
    status: int | None = None
    failure: str | None = None

    @property
    def http_request_id(self) -> str:
        return f"stream-{self.number}"

    @property
    def is_whole(self) -> bool:
        return self.events[-1:] == ["[DONE]"] and self.errors == 0

    @property
    def is_broken_off(self) -> bool:
        """By exactly one error, after which nothing comes."""
        return self.errors == 1 and "error" in json.loads(self.events[-1])

    @property
    def errors(self) -> int:
        return sum("error" in json.loads(event) for event in self.events if event != "[DONE]")

    def run(self, client: httpx.Client) -> None:
        try:
            self._run(client)
        except httpx.TransportError as error:
            self.failure = type(error).__name__
        self.ended_s = time.monotonic()

    def _run(self, client: httpx.Client) -> None:
        prompt = [300 + self.number, *range(400, 470)]
        body = {"model": "m", "prompt": prompt, "max_tokens": TOKENS, "ignore_eos": True}
        streamed = body | {"stream": True}
        headers = bearer("ann") | {"X-Request-Id": self.http_request_id}
        with client.stream("POST", "/v1/completions", json=streamed, headers=headers) as answer:
            self.status = answer.status_code
            for line in answer.iter_lines():
                if line.startswith("data: "):
                    self.begun_s = self.begun_s or time.monotonic()
                    self.events.append(line.removeprefix("data: "))


def streams_while(
    client: httpx.Client, break_it: Callable[[], object]
) -> tuple[list[Stream], float]:
    """Twenty streams, of which some have begun and some wait when it breaks; and that time."""
    streams = [Stream() for _ in range(STREAMS)]
    with ThreadPoolExecutor(STREAMS) as pool:
        running = [pool.submit(stream.run, client) for stream in streams]
        until(lambda: sum(len(stream.events) > 5 for stream in streams) >= 6, 60)
        broken_s = time.monotonic()
        break_it()
        for done in running:
            done.result()
    return streams, broken_s
