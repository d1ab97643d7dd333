"""Pass times by the formula in the model's docstring."""

import pytest

from replicas.sim.latency import DynamoLatency, LinearLatency
from replicas.sim.sequence import Pass

MODEL = LinearLatency(prefill_ms_per_token=0.5, prefill_base_ms=2, decode_ms_per_token=5)


@pytest.mark.parametrize(
    ("prefill_tokens", "decode_sequences", "expected_s"),
    [(100, 0, 0.052), (0, 1, 0.005), (0, 64, 0.005), (100, 3, 0.057), (0, 0, 0.0)],
    ids=["prefill pays the base", "decode", "a shared step", "mixed", "nothing"],
)
def test_pass_time(prefill_tokens: int, decode_sequences: int, expected_s: float) -> None:
    work = Pass(prefill_tokens=prefill_tokens, decode_sequences=decode_sequences)
    assert MODEL.pass_s(work) == pytest.approx(expected_s)


DYNAMO = DynamoLatency(total_tokens=16_384 * 64)


@pytest.mark.parametrize(
    ("tokens", "expected_ms"), [(512, 24.3857), (4096, 85.7560), (8192, 169.1369)]
)
def test_prefill_takes_what_the_mocker_takes(tokens: int, expected_ms: float) -> None:
    """Its own figures, to its last printed digit."""
    work = Pass(prefill_sequences=1, prefill_tokens=tokens)
    assert DYNAMO.pass_s(work) * 1000 == pytest.approx(expected_ms, abs=1e-4)


def test_a_mixed_pass_takes_the_sum_of_both() -> None:
    work = Pass(
        prefill_sequences=1, prefill_tokens=4096, decode_sequences=1, decode_context_tokens=527
    )
    assert DYNAMO.pass_s(work) * 1000 == pytest.approx(91.5231, abs=1e-4)


def test_prompts_of_one_pass_count_as_equally_long_in_whole_tokens() -> None:
    """53 new tokens of two prompts, 506 and 480 on average: twice 26."""
    work = Pass(prefill_sequences=2, prefill_context_tokens=960, prefill_tokens=53)
    alone = Pass(prefill_sequences=1, prefill_tokens=52)
    assert DYNAMO.pass_s(work) == DYNAMO.pass_s(alone)
