"""What became of each request of a replay, as arrays in the trace's order. Pure."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from router.replay.trace import TraceRequest

Floats = NDArray[np.float64]


class Outcomes:
    """float64 and int64 [requests]; times in seconds, nan until they come.

    `ttft_s` and `e2e_s` are counted from the arrival. `cached_tokens` are those of the prompt
    that the engine took from its cache, -1 before the end.
    """

    def __init__(self, requests: Sequence[TraceRequest]) -> None:
        count = len(requests)
        self.arrived_s: Floats = np.array([request.at_s for request in requests])
        self.prompt_tokens = np.array([request.prompt_tokens for request in requests], np.int64)
        self.output_tokens = np.array([request.output_tokens for request in requests], np.int64)
        self.cached_tokens = np.full(count, -1, np.int64)
        self.ttft_s: Floats = np.full(count, np.nan)
        self.e2e_s: Floats = np.full(count, np.nan)
        self.attempts = np.zeros(count, np.int64)
        self.labels = np.array([request.label for request in requests], dtype=object)

    def __len__(self) -> int:
        return len(self.arrived_s)

    def first_token(self, number: int, now: float) -> None:
        self.ttft_s[number] = now - self.arrived_s[number]

    def finished(self, number: int, now: float, cached_tokens: int) -> None:
        self.e2e_s[number] = now - self.arrived_s[number]
        self.cached_tokens[number] = cached_tokens

    def failed(self, number: int) -> None:
        """Also after its first token: the answer broke off."""
        self.ttft_s[number] = self.e2e_s[number] = np.nan

    @property
    def is_completed(self) -> NDArray[np.bool_]:
        completed: NDArray[np.bool_] = ~np.isnan(self.e2e_s)
        return completed
