"""Pass times by the formula in the model's docstring."""

import pytest

from replicas.sim.latency import LinearLatency
from replicas.sim.sequence import Pass

MODEL = LinearLatency(prefill_ms_per_token=0.5, prefill_base_ms=2, decode_ms_per_token=5)


@pytest.mark.parametrize(
    ("prefill_tokens", "decode_sequences", "expected_s"),
    [(100, 0, 0.052), (0, 1, 0.005), (0, 64, 0.005), (100, 3, 0.057), (0, 0, 0.0)],
    ids=["prefill pays the base", "decode", "a shared step", "mixed", "nothing"],
)
def test_pass_time(prefill_tokens: int, decode_sequences: int, expected_s: float) -> None:
    work = Pass({}, prefill_tokens, decode_sequences, decode_context_tokens=0)
    assert MODEL.pass_s(work) == pytest.approx(expected_s)
