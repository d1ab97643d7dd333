"""Chat completions as vLLM writes them."""

from dataclasses import dataclass

import msgspec

from replicas.sim.answers import DONE, Delta, Json, Usage, logprob, ranked, sse
from replicas.sim.text import piece


@dataclass(frozen=True, slots=True)
class ChatAnswer:
    """`created` is in whole seconds since the epoch; `top_logprobs` is `None` for no logprobs."""

    answer_id: str
    model: str
    created: int
    choices: int
    top_logprobs: int | None
    is_usage_shown: bool

    def opening(self) -> bytes:
        return b"".join(self._role(choice) for choice in range(self.choices))

    def delta(self, choice: int, delta: Delta, usage: Usage | None) -> bytes:
        value: Json = {
            "index": choice,
            "delta": {"content": delta.text},
            "logprobs": self._logprobs(delta.token_ids),
            "finish_reason": delta.finish_reason,
        }
        if delta.finish_reason is not None:
            value["stop_reason"] = delta.stop_reason
        return self._chunk([value], usage)

    def closing(self, usage: Usage) -> bytes:
        return (self._chunk([], usage) if self.is_usage_shown else b"") + DONE

    def document(self, choices: list[Delta], usage: Usage) -> bytes:
        value = self._head("chat.completion")
        value["choices"] = [self._choice(i, delta) for i, delta in enumerate(choices)]
        value |= {"service_tier": None, "system_fingerprint": None, "usage": usage.to_json()}
        return msgspec.json.encode(value)

    def _head(self, kind: str) -> Json:
        return {
            "id": self.answer_id,
            "object": kind,
            "created": self.created,
            "model": self.model,
        }

    def _role(self, choice: int) -> bytes:
        delta = {"role": "assistant", "content": ""}
        value = {"index": choice, "delta": delta, "logprobs": None, "finish_reason": None}
        return self._chunk([value], None)

    def _chunk(self, choices: list[Json], usage: Usage | None) -> bytes:
        value = self._head("chat.completion.chunk")
        value["choices"] = choices
        if usage is not None:
            value["usage"] = usage.to_json()
        return sse(value)

    def _choice(self, index: int, delta: Delta) -> Json:
        return {
            "index": index,
            "message": {"role": "assistant", "content": delta.text, "refusal": None},
            "logprobs": self._logprobs(delta.token_ids),
            "finish_reason": delta.finish_reason,
            "stop_reason": delta.stop_reason,
        }

    def _logprobs(self, token_ids: list[int]) -> Json | None:
        if self.top_logprobs is None:
            return None
        return {"content": [self._entry(token_id) for token_id in token_ids]}

    def _entry(self, token_id: int) -> Json:
        top = [_token(text, value) for text, value in ranked(token_id, self.top_logprobs or 0)]
        return _token(piece(token_id), logprob(token_id)) | {"top_logprobs": top}


def _token(text: str, value: float) -> Json:
    return {"token": text, "logprob": value, "bytes": list(text.encode())}
