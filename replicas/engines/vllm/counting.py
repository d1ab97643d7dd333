"""What vLLM's answers do not tell: how much of each engine request came from the cache, and the
ids of an answer's tokens.

vLLM's answers report the cached tokens of one engine request, whichever came last; a list of
prompts and several choices of one prompt make several.
"""

import json
from collections.abc import Iterable
from typing import Any

from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.detokenizer import BaseIncrementalDetokenizer
from vllm.v1.engine.output_processor import OutputProcessor, RequestState

from replicas.engines.protocol import EngineReport
from replicas.engines.vllm.seen_tokens import SeenTokens
from replicas.kv.connector.messages import lost_blocks


class CountingLLM(AsyncLLM):
    """An AsyncLLM that keeps the engine's figures of the requests that it was told to watch."""

    output_processor: "_RememberingProcessor"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.output_processor = _RememberingProcessor.like(self.output_processor)
        self.output_processor.block_size = self.vllm_config.cache_config.block_size

    def watch(self, request_ids: list[str], *, keeps_tokens: bool = False) -> None:
        """From before the request is sent until `forget`."""
        self.output_processor.watched.update((request_id, []) for request_id in request_ids)
        if keeps_tokens:
            self.output_processor.keeping_tokens.update(request_ids)

    def report(self, request_ids: list[str]) -> EngineReport:
        """The figures of watched requests; engine requests without output yet count 0."""
        states = list(self._states(request_ids))
        kept = [s.detokenizer for s in states if isinstance(s.detokenizer, SeenTokens)]
        return EngineReport(
            tuple(state.num_cached_tokens for state in states), kept[0].output() if kept else None
        )

    def cached_tokens(self, request_ids: list[str]) -> int | None:
        """The sum over the prompts of watched requests; the first choice speaks for its prompt.

        None for a single engine request: of that one vLLM's own answer is right, unless a load
        failed, which a streamed answer was begun without knowing.
        """
        processor = self.output_processor
        watched = [processor.watched[request_id] for request_id in request_ids]
        if sum(map(len, watched)) < 2 and processor.corrected.isdisjoint(request_ids):
            return None
        return sum(int(state.num_cached_tokens) for states in watched for state in states[:1])

    def forget(self, request_ids: list[str]) -> None:
        for request_id in request_ids:
            self.output_processor.watched.pop(request_id, None)
        self.output_processor.keeping_tokens.difference_update(request_ids)
        self.output_processor.corrected.difference_update(request_ids)

    def _states(self, request_ids: list[str]) -> Iterable[RequestState]:
        watched = self.output_processor.watched
        return (state for request_id in request_ids for state in watched[request_id])


class _RememberingProcessor(OutputProcessor):
    """Keeps what vLLM knows of watched requests beyond their end, choices in their order.

    Where a load from a store failed, vLLM has counted its blocks as cached all the same; what the
    KV connector says of it at the request's end corrects the figure, and goes no further.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.block_size = 1
        self.watched: dict[str, list[RequestState]] = {}
        self.keeping_tokens: set[str] = set()
        self.corrected: set[str] = set()

    @classmethod
    def like(cls, other: OutputProcessor) -> "_RememberingProcessor":
        """In the place of `other`, which has not seen a request."""
        return cls(
            other.tokenizer,
            log_stats=other.log_stats,
            stream_interval=other.stream_interval,
            tracing_enabled=other.tracing_enabled,
            admission_stats=other.admission_stats,
        )

    def add_request(self, request: Any, *args: Any, **kwargs: Any) -> None:
        super().add_request(request, *args, **kwargs)
        state = self.request_states[request.request_id]
        watched = self.watched.get(state.external_req_id)
        if watched is not None:
            watched.append(state)
        inner = state.detokenizer
        if state.external_req_id in self.keeping_tokens and isinstance(
            inner, BaseIncrementalDetokenizer
        ):
            state.detokenizer = SeenTokens(inner, self.tokenizer)

    def process_outputs(self, engine_core_outputs: list[Any], *args: Any, **kwargs: Any) -> Any:
        for output in engine_core_outputs:
            if output.kv_transfer_params is not None:
                self._correct(output)
        return super().process_outputs(engine_core_outputs, *args, **kwargs)

    def _correct(self, output: Any) -> None:
        """Before vLLM makes an answer of it; of the first output the figure is still in there."""
        lost_tokens = lost_blocks(output.kv_transfer_params) * self.block_size
        output.kv_transfer_params = None
        state = self.request_states.get(output.request_id)
        if state is None or not lost_tokens:
            return
        figures = output.prefill_stats if state.is_prefilling else state
        if figures is not None:
            figures.num_cached_tokens = max(0, figures.num_cached_tokens - lost_tokens)
            self.corrected.add(state.external_req_id)


def is_usage_event(event: str) -> bool:
    """Whether a streamed completion event is the last one, which has usage and no choice."""
    return '"choices":[],' in event and '"usage":{' in event


def with_cached_tokens(event: str, cached_tokens: int) -> str:
    """The same usage event with another number of cached tokens."""
    chunk = json.loads(event.removeprefix("data: "))
    details = chunk["usage"].get("prompt_tokens_details") or {}
    chunk["usage"]["prompt_tokens_details"] = details | {"cached_tokens": cached_tokens}
    return f"data: {json.dumps(chunk, separators=(',', ':'))}\n\n"
