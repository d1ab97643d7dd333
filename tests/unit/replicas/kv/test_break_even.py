"""What a replica says of its loads and its computing, from the sums of what they took."""

from random import Random

import pytest

from replicas.engines.protocol import EngineWork
from replicas.kv.break_even import BreakEven
from router.core.store_access import LoadLine

BLOCK_SIZE = 32
FIXED_MS, MS_PER_BLOCK, COMPUTE_MS_PER_TOKEN, STEP_MS = 8.0, 0.25, 0.1, 5.0


class Replica:
    """Loads and prefills of known cost, give or take `noise` of each."""

    def __init__(self, noise: float = 0.0) -> None:
        self.break_even = BreakEven(BLOCK_SIZE)
        self._work = EngineWork()
        self._rng = Random(1)
        self._noise = noise
        self.now = 0.0
        self.break_even.observe(self._work, self.now)

    def load(self, *blocks: int, ms: float | None = None) -> None:
        """All of them between two looks."""
        took = sum(FIXED_MS + MS_PER_BLOCK * each for each in blocks) if ms is None else ms
        self._add(EngineWork(0, 0, 0.0, len(blocks), sum(blocks), self._jittered(took)))

    def prefill(self, *tokens: int) -> None:
        took = sum(STEP_MS + COMPUTE_MS_PER_TOKEN * each for each in tokens)
        self._add(EngineWork(len(tokens), sum(tokens), self._jittered(took)))

    def line(self) -> LoadLine | None:
        return self.break_even.line(self.now)

    def _jittered(self, ms: float) -> float:
        return ms * (1 + self._noise * self._rng.uniform(-1, 1))

    def _add(self, more: EngineWork) -> None:
        before = self._work
        self._work = EngineWork(
            before.prefills + more.prefills,
            before.prefill_tokens + more.prefill_tokens,
            before.prefill_ms + more.prefill_ms,
            before.loads + more.loads,
            before.loaded_blocks + more.loaded_blocks,
            before.load_ms + more.load_ms,
        )
        self.now += 1.0
        self.break_even.observe(self._work, self.now)


def test_it_learns_both_lines() -> None:
    replica = Replica(noise=0.1)
    draw = Random(2)
    for _ in range(60):
        replica.load(draw.randrange(16, 200))
        replica.prefill(draw.randrange(20, 4000))
    line = replica.line()
    assert line is not None
    assert line.fixed_ms == pytest.approx(FIXED_MS, abs=3)
    assert line.ms_per_block == pytest.approx(MS_PER_BLOCK, rel=0.2)
    assert line.compute_ms_per_block == pytest.approx(COMPUTE_MS_PER_TOKEN * BLOCK_SIZE, rel=0.2)


def test_several_between_two_looks_teach_as_much_as_their_mean() -> None:
    replica = Replica()
    replica.load(1)
    for _ in range(40):
        replica.load(16, 48)
        replica.load(160, 160, 160)
        replica.prefill(1000, 3000)
    line = replica.line()
    assert line is not None
    assert line.fixed_ms == pytest.approx(FIXED_MS, rel=0.1)
    assert line.compute_ms_per_block == pytest.approx(BLOCK_SIZE * 0.1025, rel=0.01)


def test_loads_of_one_size_say_nothing_of_larger_ones() -> None:
    """Their cost is taken for fixed, so that a larger load will be tried."""
    replica = Replica()
    for _ in range(10):
        replica.load(16)
        replica.prefill(1000)
    line = replica.line()
    assert line is not None
    assert (line.fixed_ms, line.ms_per_block) == pytest.approx((12.0, 0.0))


def test_nothing_is_said_before_enough_was_seen() -> None:
    replica = Replica()
    replica.load(16, ms=900.0)
    replica.load(16)
    replica.prefill(100, 200, 300)
    assert replica.line() is None
    replica.load(16)
    line = replica.line()
    assert line is not None
    assert line.fixed_ms == pytest.approx(12.0)


def test_what_the_engine_did_before_it_was_looked_at_is_not_counted() -> None:
    break_even = BreakEven(BLOCK_SIZE)
    break_even.observe(EngineWork(9, 900, 9e6, 9, 90, 9e6), 0.0)
    assert break_even.line(0.0) is None


def test_a_line_stays_while_it_changes_by_little_and_is_forgotten_when_it_is_old() -> None:
    replica = Replica(noise=0.02)
    for _ in range(30):
        replica.load(16)
        replica.load(160)
        replica.prefill(1000)
    line = replica.line()
    replica.load(100)
    assert replica.line() is line
    replica.now += 601.0
    assert replica.line() is None
    replica.load(100)
    replica.load(100)
    again = replica.line()
    assert again is not None
    assert again.fixed_ms == pytest.approx(FIXED_MS + 100 * MS_PER_BLOCK, rel=0.05)
