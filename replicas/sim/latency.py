"""How long a pass takes: the simulated engine's only notion of time."""

from dataclasses import dataclass
from typing import Protocol

from replicas.sim.sequence import Pass


class LatencyModel(Protocol):
    def pass_s(self, work: Pass) -> float:
        """Seconds that the pass takes; pure."""
        ...


@dataclass(frozen=True, slots=True)
class LinearLatency:
    """Prefill in proportion to the tokens computed, plus a base; one constant for decoding.

    The base is paid by every pass that prefills, so a chunked prompt pays it for each chunk; the
    decode constant by every pass that decodes, however many sequences share it.
    """

    prefill_ms_per_token: float
    prefill_base_ms: float
    decode_ms_per_token: float

    def pass_s(self, work: Pass) -> float:
        prefill_ms = 0.0
        if work.prefill_tokens:
            prefill_ms = self.prefill_base_ms + self.prefill_ms_per_token * work.prefill_tokens
        decode_ms = self.decode_ms_per_token if work.decode_sequences else 0.0
        return (prefill_ms + decode_ms) / 1000


@dataclass(frozen=True, slots=True)
class DynamoLatency:
    """The formulas of NVIDIA Dynamo's mocker, as fitted by its authors to a real engine.

    Prefill of n tokens: 4.209989e-07 n² + 1.518344e-02 n + 16.50142 ms. Decode at usage x, the
    share of `total_tokens` that the decoding sequences are long: -25.74 x² + 54.01 x + 5.74 ms, at
    least 1. Several prompts in one pass count as equally long, in whole tokens.
    """

    total_tokens: int

    def pass_s(self, work: Pass) -> float:
        total_ms = 0.0
        if work.prefill_sequences:
            total_ms = self._prefill_ms(work)
        if work.decode_sequences:
            usage = min(work.decode_context_tokens / self.total_tokens, 1.0)
            total_ms += max((-25.74 * usage + 54.01) * usage + 5.74, 1.0)
        return total_ms / 1000

    def _prefill_ms(self, work: Pass) -> float:
        prompts = work.prefill_sequences
        mean_start = work.prefill_context_tokens // prompts
        mean_end = (work.prefill_context_tokens + work.prefill_tokens) // prompts
        tokens = prompts * (mean_end - mean_start)
        return (4.209989e-07 * tokens + 1.518344e-02) * tokens + 16.50142 if tokens else 0.0
