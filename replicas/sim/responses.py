"""Responses as vLLM writes them: one message item with one text part, nothing stored."""

from dataclasses import dataclass, field
from itertools import count

import msgspec

from replicas.sim.answers import Delta, Json, Usage, sse


@dataclass(slots=True)
class ResponsesAnswer:
    """`created` is in whole seconds since the epoch. Keeps the text for its closing events."""

    answer_id: str
    model: str
    created: int
    max_output_tokens: int | None
    _said: Delta = field(default_factory=Delta)
    _numbers: "count[int]" = field(default_factory=count)

    def opening(self) -> bytes:
        response = self._response("in_progress", [], None)
        return b"".join(
            (
                self._event("response.created", {"response": response}),
                self._event("response.in_progress", {"response": response}),
                self._item_event("response.output_item.added", self._item("in_progress", [])),
                self._part_event("response.content_part.added", {"part": _part("")}),
            )
        )

    def delta(self, choice: int, delta: Delta, usage: Usage | None) -> bytes:
        self._said.add(delta)
        if not delta.text:
            return b""
        return self._part_event("response.output_text.delta", {"delta": delta.text, "logprobs": []})

    def closing(self, usage: Usage) -> bytes:
        text = self._said.text
        item = self._item("completed", [_part(text)])
        response = self._finished(self._said, usage)
        return b"".join(
            (
                self._part_event("response.output_text.done", {"text": text, "logprobs": []}),
                self._part_event("response.content_part.done", {"part": _part(text)}),
                self._item_event("response.output_item.done", item),
                self._event("response.completed", {"response": response}),
            )
        )

    def document(self, choices: list[Delta], usage: Usage) -> bytes:
        return msgspec.json.encode(self._finished(choices[0], usage))

    def _finished(self, said: Delta, usage: Usage) -> Json:
        status = "incomplete" if said.finish_reason == "length" else "completed"
        return self._response(status, [self._item("completed", [_part(said.text)])], usage)

    def _response(self, status: str, output: list[Json], usage: Usage | None) -> Json:
        is_cut = status == "incomplete"
        return {
            "id": self.answer_id,
            "object": "response",
            "created_at": self.created,
            "status": status,
            "model": self.model,
            "output": output,
            "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
            "max_output_tokens": self.max_output_tokens,
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
            "usage": None if usage is None else _usage(usage),
        }

    def _item(self, status: str, content: list[Json]) -> Json:
        return {
            "id": f"msg_{self.answer_id}",
            "type": "message",
            "role": "assistant",
            "status": status,
            "content": content,
        }

    def _item_event(self, kind: str, item: Json) -> bytes:
        return self._event(kind, {"output_index": 0, "item": item})

    def _part_event(self, kind: str, rest: Json) -> bytes:
        place = {"item_id": f"msg_{self.answer_id}", "output_index": 0, "content_index": 0}
        return self._event(kind, place | rest)

    def _event(self, kind: str, rest: Json) -> bytes:
        return sse({"type": kind, "sequence_number": next(self._numbers)} | rest, event=kind)


def _part(text: str) -> Json:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": None}


def _usage(usage: Usage) -> Json:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }
