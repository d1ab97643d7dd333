"""How long a pass takes: the simulated engine's only notion of time."""

from dataclasses import asdict, dataclass
from typing import Protocol

import msgspec

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


@dataclass(frozen=True, slots=True)
class FittedLatency:
    """A real engine's pass times, as measured and fitted by `scripts/profile_engine`.

    A pass that prefills pays its base, a price for each prompt token that it computes and a price
    for each pair of such a token and a token before it; one that decodes its base, a price for each
    sequence and a price for each token of their contexts. All in milliseconds.
    """

    prefill_base_ms: float
    prefill_token_ms: float
    prefill_pair_ms: float
    decode_base_ms: float
    decode_sequence_ms: float
    decode_context_token_ms: float

    @staticmethod
    def features(work: Pass) -> tuple[float, ...]:
        """What each coefficient is multiplied by, in their order."""
        prompts = work.prefill_sequences
        tokens, context = work.prefill_tokens, work.prefill_context_tokens
        pairs = tokens * (context + tokens / 2) / prompts if prompts else 0.0
        sequences = work.decode_sequences
        context_tokens = work.decode_context_tokens
        return bool(prompts), tokens, pairs, bool(sequences), sequences, context_tokens

    @classmethod
    def from_json(cls, data: bytes) -> "FittedLatency":
        """Raises `ValueError` where it is none."""
        return msgspec.json.decode(data, type=cls)

    def to_json(self) -> bytes:
        return msgspec.json.format(msgspec.json.encode(asdict(self)))

    def pass_s(self, work: Pass) -> float:
        base, token, pair, decode, sequence, context = self.features(work)
        return (
            self.prefill_base_ms * base
            + self.prefill_token_ms * token
            + self.prefill_pair_ms * pair
            + self.decode_base_ms * decode
            + self.decode_sequence_ms * sequence
            + self.decode_context_token_ms * context
        ) / 1000
