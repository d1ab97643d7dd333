"""Text completions as vLLM writes them."""

from dataclasses import dataclass
from itertools import accumulate

import msgspec

from replicas.sim.answers import DONE, Delta, Json, Usage, logprob, ranked, sse
from replicas.sim.text import piece


@dataclass(frozen=True, slots=True)
class CompletionsAnswer:
    """`created` is in whole seconds since the epoch; `top_logprobs` is `None` for no logprobs."""

    answer_id: str
    model: str
    created: int
    top_logprobs: int | None
    is_usage_shown: bool

    def opening(self) -> bytes:
        return b""

    def delta(self, choice: int, delta: Delta, usage: Usage | None) -> bytes:
        return self._chunk([self._choice(choice, delta)], usage)

    def closing(self, usage: Usage) -> bytes:
        return (self._chunk([], usage) if self.is_usage_shown else b"") + DONE

    def document(self, choices: list[Delta], usage: Usage) -> bytes:
        value = self._head()
        value["choices"] = [self._choice(i, delta) for i, delta in enumerate(choices)]
        value |= {"service_tier": None, "system_fingerprint": None, "usage": usage.to_json()}
        return msgspec.json.encode(value)

    def _head(self) -> Json:
        return {
            "id": self.answer_id,
            "object": "text_completion",
            "created": self.created,
            "model": self.model,
        }

    def _chunk(self, choices: list[Json], usage: Usage | None) -> bytes:
        value = self._head()
        value["choices"] = choices
        if usage is not None:
            value["usage"] = usage.to_json()
        return sse(value)

    def _choice(self, index: int, delta: Delta) -> Json:
        return {
            "index": index,
            "text": delta.text,
            "logprobs": self._logprobs(delta),
            "finish_reason": delta.finish_reason,
            "stop_reason": delta.stop_reason,
        }

    def _logprobs(self, delta: Delta) -> Json | None:
        if self.top_logprobs is None:
            return None
        tokens = [piece(token_id) for token_id in delta.token_ids]
        starts = list(accumulate(map(len, tokens), initial=delta.offset))
        top = self.top_logprobs
        return {
            "text_offset": starts[:-1],
            "token_logprobs": [logprob(token_id) for token_id in delta.token_ids],
            "tokens": tokens,
            "top_logprobs": [dict(ranked(token_id, max(top, 1))) for token_id in delta.token_ids],
        }
