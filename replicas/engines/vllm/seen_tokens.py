"""Which tokens of an answer its client has seen: what a next prompt may continue.

vLLM cuts the text at a stop string and leaves a stop token out of it, but its ids have both.
"""

from bisect import bisect_left
from typing import Any

import numpy as np
from vllm.v1.engine.detokenizer import BaseIncrementalDetokenizer, IncrementalDetokenizer

from replicas.engines.protocol import Output


class SeenTokens(IncrementalDetokenizer):
    """A detokenizer that notes where in the text each token ends. Stands in for `inner`.

    `tokenizer` encodes the seen beginning of a token that a stop string cut.
    """

    def __init__(self, inner: BaseIncrementalDetokenizer, tokenizer: Any) -> None:
        super().__init__()
        self._inner = inner
        self._tokenizer = tokenizer
        self._ends: list[int] = []
        self._stop_string: str | None = None
        self._ends_in_stop_token = False

    @property
    def output_token_ids(self) -> list[int]:
        ids: list[int] = self._inner.output_token_ids
        return ids

    def num_output_tokens(self) -> int:
        return int(self._inner.num_output_tokens())

    def get_next_output_text(self, finished: bool, delta: bool) -> str:
        return str(self._inner.get_next_output_text(finished, delta))

    def update(self, new_token_ids: list[int], stop_terminated: bool) -> str | None:
        """One token at a time: what follows a stop string is dropped here as `inner` drops it."""
        last = len(new_token_ids) - 1
        for position, token_id in enumerate(new_token_ids):
            is_stop_token = stop_terminated and position == last
            self._stop_string = self._inner.update([token_id], is_stop_token)
            self._ends.append(len(self._inner.output_text))
            if self._stop_string is not None:
                break
            self._ends_in_stop_token = is_stop_token
        return self._stop_string

    def output(self) -> Output:
        """Once the answer is complete."""
        seen = np.asarray(self._seen(), dtype="<u4").tobytes()
        return Output(seen, self.num_output_tokens())

    def _seen(self) -> list[int]:
        """Those of a cut token's beginning are made anew."""
        ids = self.output_token_ids
        if self._stop_string is not None:
            return self._before_cut(ids, self._inner.output_text)
        is_hidden = self._ends_in_stop_token and not self._inner.include_stop_str_in_output
        return ids[:-1] if is_hidden else ids

    def _before_cut(self, ids: list[int], text: str) -> list[int]:
        """The last token completed the stop string, so its end in the text is not its own."""
        ends = [0, *self._ends[:-1]]
        whole = bisect_left(ends, len(text))
        if whole < len(ends) and ends[whole] == len(text):
            return ids[:whole]
        whole = bisect_left(ends, ends[whole - 1])
        rest: list[int] = self._tokenizer.encode(text[ends[whole] :], add_special_tokens=False)
        return ids[:whole] + rest
