"""What a model says after given ids, to hold its answers against."""

from array import array
from dataclasses import dataclass
from random import Random
from typing import Protocol

from replicas.sim.text import Sampler, text
from serve_app.bench.soak_client import Json, SoakClient, Wrong

OUTPUT_TOKENS = 8
NO_STORE = {"Cache-Control": "no-store"}


class Oracle(Protocol):
    """`options` are what requests say beside their prompt."""

    options: Json

    def read(self, prompt: list[int], choice: Json) -> list[int]:
        """The ids of an answer. Raises `Wrong` where it cannot be right."""
        ...

    async def expected(self, prompt: list[int]) -> list[int]:
        """What the model says after all of these ids at once."""
        ...

    def is_due(self) -> bool:
        """Whether the answer at hand is to be compared with `expected`."""
        ...


class SimOracle:
    """The simulated engine's text is a function of all ids before it: each answer is held to it."""

    options: Json = {}

    def read(self, prompt: list[int], choice: Json) -> list[int]:
        said = _drawn(prompt)
        if choice["text"] != text(said):
            raise Wrong(f"after {len(prompt)} ids: {choice['text']!r} is not {text(said)!r}")
        return said

    async def expected(self, prompt: list[int]) -> list[int]:
        return _drawn(prompt)

    def is_due(self) -> bool:
        return False


@dataclass(frozen=True, slots=True)
class ModelOracle:
    """Asks the application itself: without a context, under a salt that shares no block.

    Every `one_in`-th answer is held to it.
    """

    client: SoakClient
    model: str
    rng: Random
    one_in: int

    @property
    def options(self) -> Json:
        return {"ignore_eos": True, "return_token_ids": True}

    def read(self, prompt: list[int], choice: Json) -> list[int]:
        said = list(choice["token_ids"])
        if len(said) != OUTPUT_TOKENS:
            raise Wrong(f"after {len(prompt)} ids: {said} are not {OUTPUT_TOKENS} ids")
        return said

    async def expected(self, prompt: list[int]) -> list[int]:
        return await self.client.retried("reference", lambda _: self._asked(prompt))

    def is_due(self) -> bool:
        return self.rng.randrange(self.one_in) == 0

    async def _asked(self, prompt: list[int]) -> list[int]:
        body = {"model": self.model, "prompt": prompt, "max_tokens": OUTPUT_TOKENS}
        body |= {"temperature": 0, "cache_salt": f"{self.rng.getrandbits(64):x}"} | self.options
        sent = await self.client.sent(
            "POST", "/v1/completions", (200,), json=body, headers=NO_STORE
        )
        return self.read(prompt, self.client.choice(sent.content, is_stream=False))


def _drawn(prompt: list[int]) -> list[int]:
    sampler = Sampler(array("I", prompt).tobytes(), 0)
    return [sampler.draw() for _ in range(OUTPUT_TOKENS)]
