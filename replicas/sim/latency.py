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
