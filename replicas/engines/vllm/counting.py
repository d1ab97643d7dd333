"""How much of each engine request came from the cache.

vLLM's answer to a list of prompts reports the cached tokens of one of them; the sum needs all.
"""

import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from vllm.v1.engine.async_llm import AsyncLLM


class CountingLLM(AsyncLLM):
    """An AsyncLLM that remembers `num_cached_tokens` of the requests that it was told to watch."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._cached_tokens: dict[str, int] = {}

    async def generate(
        self, prompt: Any, sampling_params: Any, request_id: str, **options: Any
    ) -> AsyncGenerator[Any, None]:
        outputs = super().generate(prompt, sampling_params, request_id, **options)
        async with aclosing(outputs):
            async for output in outputs:
                if request_id in self._cached_tokens:
                    self._cached_tokens[request_id] = output.num_cached_tokens or 0
                yield output

    def watch(self, request_ids: list[str]) -> None:
        """From before the request is sent until `forget`."""
        self._cached_tokens.update(dict.fromkeys(request_ids, 0))

    def cached_tokens(self, request_ids: list[str]) -> int:
        """The sum over watched requests; those without output yet count 0."""
        return sum(self._cached_tokens[request_id] for request_id in request_ids)

    def forget(self, request_ids: list[str]) -> None:
        """A late output of a forgotten request leaves no trace."""
        for request_id in request_ids:
            self._cached_tokens.pop(request_id, None)


def is_usage_event(event: str) -> bool:
    """Whether a streamed completion event is the last one, which has usage and no choice."""
    return '"choices":[],' in event and '"usage":{' in event


def with_cached_tokens(event: str, cached_tokens: int) -> str:
    """The same usage event with another number of cached tokens."""
    chunk = json.loads(event.removeprefix("data: "))
    chunk["usage"]["prompt_tokens_details"] = {"cached_tokens": cached_tokens}
    return f"data: {json.dumps(chunk, separators=(',', ':'))}\n\n"
