"""From how many blocks on this replica loads faster than it computes, learned from both. Pure.

Two lines are fitted: the time of a load over its blocks, that of a prefill over its tokens. Of a
prefill only the slope counts, because what is left of the prompt has to be computed in any case.
"""

from dataclasses import dataclass

from replicas.engines.protocol import EngineWork
from router.core.store_access import LoadLine

_MEMORY = 64.0
"""Loads, or prefills, after which an old one counts 1/e."""
_MIN_LOADS = 1.5
_MIN_PREFILLS = 2.5
"""Two and three, of which the older count a little less."""
_FLAT = 4.0
"""In blocks squared: so little spread of sizes tells nothing of what each block adds."""
_STALE_AFTER_S = 600.0
"""Where loading is dearer nothing is loaded, and what has changed since would never be seen."""
_SAME = 0.1
"""Figures closer than this share of each other are the same to those who are told."""


@dataclass(slots=True)
class _Line:
    """Fading sums around the means of (size, milliseconds); West's update (1979)."""

    weight: float = 0.0
    mean_size: float = 0.0
    mean_ms: float = 0.0
    spread: float = 0.0
    trend: float = 0.0

    def add(self, count: int, size: float, ms: float) -> None:
        """`count` observations of this mean."""
        fading = (1 - 1 / _MEMORY) ** count
        self.weight = self.weight * fading + count
        share = count / self.weight
        before = size - self.mean_size
        self.mean_size += share * before
        ms_before = ms - self.mean_ms
        self.mean_ms += share * ms_before
        self.spread = self.spread * fading + count * before * (size - self.mean_size)
        self.trend = self.trend * fading + count * before * (ms - self.mean_ms)


class BreakEven:
    """Fed with an engine's own sums, now and then; each call O(1)."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._seen: EngineWork | None = None
        self._is_first_load = True
        self._loads = _Line()
        self._prefills = _Line()
        self._loaded_at = 0.0
        self._told: LoadLine | None = None

    def observe(self, work: EngineWork, now: float) -> None:
        """What the engine has done since its start. The first call only sets the mark."""
        before, self._seen = self._seen, work
        if before is None:
            return
        prefills = work.prefills - before.prefills
        if prefills > 0:
            tokens = (work.prefill_tokens - before.prefill_tokens) / prefills
            self._prefills.add(prefills, tokens, (work.prefill_ms - before.prefill_ms) / prefills)
        loads = work.loads - before.loads
        if loads > 0:
            blocks = (work.loaded_blocks - before.loaded_blocks) / loads
            self._add_loads(loads, blocks, (work.load_ms - before.load_ms) / loads, now)

    def line(self, now: float) -> LoadLine | None:
        """None until enough was measured, and where the last load is long ago: the next load is a
        measurement. Stays the same while it changes by little."""
        if self._loads.weight < _MIN_LOADS or self._prefills.weight < _MIN_PREFILLS:
            return None
        if now > self._loaded_at + _STALE_AFTER_S:
            self._loads = _Line()
            self._told = None
            return None
        line = self._fitted()
        if self._told is None or not _is_same(line, self._told):
            self._told = line
        return self._told

    def _add_loads(self, loads: int, blocks: float, ms: float, now: float) -> None:
        """The first load of an engine's life also joins the cluster, which no other has to."""
        if not self._is_first_load:
            self._loads.add(loads, blocks, ms)
            self._loaded_at = now
        self._is_first_load = False

    def _fitted(self) -> LoadLine:
        loads = self._loads
        ms_per_block = max(loads.trend / (loads.spread + _FLAT * loads.weight), 0.0)
        fixed_ms = max(loads.mean_ms - ms_per_block * loads.mean_size, 0.0)
        return LoadLine(fixed_ms, ms_per_block, self._block_size * _slope(self._prefills))


def _slope(line: _Line) -> float:
    """With one more observation, that nothing takes no time: prefills may all be of one size."""
    share = line.weight / (line.weight + 1)
    spread = line.spread + share * line.mean_size**2
    trend = line.trend + share * line.mean_size * line.mean_ms
    return max(trend, 0.0) / spread if spread else 0.0


def _is_same(line: LoadLine, told: LoadLine) -> bool:
    pairs = (
        (line.fixed_ms, told.fixed_ms),
        (line.ms_per_block, told.ms_per_block),
        (line.compute_ms_per_block, told.compute_ms_per_block),
    )
    return all(abs(a - b) <= _SAME * max(a, b) for a, b in pairs)
