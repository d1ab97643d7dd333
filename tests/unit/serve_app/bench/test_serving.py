"""What the serving benchmark computes from answers."""

from random import Random

import pytest

from router.replay.lru_blocks import Served
from serve_app.bench import balancing
from serve_app.bench.balancing import Level
from serve_app.bench.chat_client import Answered
from serve_app.bench.conversations import Conversation, Turn
from serve_app.bench.serving import BLOCK_SIZE, Run, Script, best_tokens, fitted_prices


def talk(name: str) -> Conversation:
    messages = [{"role": "system"}, *[{"role": "user"}, {"role": "assistant"}] * 2]
    return Conversation(name, 0, tuple(messages[:-1]))


def answered(name: str, number: int, replica: str, cached_blocks: int = 0) -> Answered:
    return Answered(
        Turn(talk(name), number),
        sent_s=number,
        status=200,
        ttft_ms=50.0,
        total_ms=60.0,
        prompt_tokens=100,
        cached_tokens=cached_blocks * BLOCK_SIZE,
        output_tokens=2,
        replica=replica,
    )


def script(*names: str) -> Script:
    """Of every talk the second turn goes on where the first ended."""
    served = {}
    for start, name in enumerate(names):
        chain = tuple(range(10 * start, 10 * start + 3))
        served[name, 0] = Served(chain[:2], 3, 2 * BLOCK_SIZE + 1)
        served[name, 1] = Served(chain, 4, 3 * BLOCK_SIZE + 1)
    return Script(((), ()), ((), ()), served)


def test_the_oracle_keeps_the_survivors_cache_and_loses_the_killed_ones() -> None:
    """Replica `b` lives through both halves: only what it holds is reused in the second."""
    first = [answered("x", 0, "a"), answered("y", 0, "b")]
    second = [answered("x", 1, "c"), answered("y", 1, "b")]
    run = Run("kv_aware", (first, second), (1.0, 1.0))
    best = best_tokens(run, script("x", "y"), 8, Random(1))
    assert best == (0, 2 * BLOCK_SIZE)


def test_reuse_is_the_share_of_prompt_tokens_that_were_cached() -> None:
    run = Run("kv_aware", ([answered("x", 0, "a"), answered("x", 1, "a", 2)], []), (1.0, 0.0))
    assert run.reuse(0) == pytest.approx(64 / 200)
    assert run.computed_tokens() == 200 - 64


def test_prices_are_read_off_the_line_that_first_tokens_follow() -> None:
    answers = [
        Answered(Turn(talk("x"), 0), 0.0, 200, ttft_ms=20 + 0.5 * tokens, prompt_tokens=tokens)
        for tokens in range(0, 1000, 50)
    ]
    assert fitted_prices(answers) == {"ms_per_token": 0.5, "base_ms": 20.0}


def test_goodput_counts_only_answers_within_both_limits() -> None:
    good = answered("x", 0, "a")
    slow = Answered(good.turn, 0.0, 200, ttft_ms=1001, total_ms=1002, output_tokens=2)
    halting = Answered(good.turn, 0.0, 200, ttft_ms=1, total_ms=102, output_tokens=2)
    level = balancing.level([good, good, slow, halting, Answered(good.turn, 0.0)], 2.0)
    assert level.goodput_rps == 1.0
    assert level.failed == 1
    assert level.ttft_p90_ms == float("inf")


def test_first_is_who_is_not_beaten() -> None:
    ours, other = Level(10, 20, 5, 0.9, 0), Level(9, 20, 4, 0.8, 0)
    verdict = {"ttft_p50_ms": False, "ttft_p90_ms": True, "goodput_rps": True}
    assert balancing.is_first(ours, [other]) == verdict
