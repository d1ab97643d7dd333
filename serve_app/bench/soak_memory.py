"""Whether memory stays where it is, of processes that are killed and replaced meanwhile. Pure."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import mean

WARM_UP_S = 30.0
"""What a process takes in its first time is no growth."""
GROWN_RATIO, GROWN_MIB = 1.3, 32.0


@dataclass(frozen=True, slots=True)
class Sample:
    """One process at one moment, in seconds of any origin."""

    at: float
    pid: int
    mib: float


@dataclass(frozen=True, slots=True)
class Growth:
    """Of one kind of process: mean MiB of a process in the first and in the last third of the time,
    and MiB a minute within lives; `slope` is None where no life was long enough."""

    first: float
    last: float
    slope: float | None

    @property
    def is_flat(self) -> bool:
        """Both the ratio and the difference are bounded: small processes vary, large ones may."""
        return self.last <= max(self.first * GROWN_RATIO, self.first + GROWN_MIB)


@dataclass(slots=True)
class MemoryLog:
    """Samples by kind of process; as many as are noted."""

    samples: dict[str, list[Sample]] = field(default_factory=lambda: defaultdict(list))

    def note(self, at: float, by_kind: Mapping[str, Sequence[tuple[int, float]]]) -> None:
        for kind, processes in by_kind.items():
            self.samples[kind] += (Sample(at, pid, mib) for pid, mib in processes)

    def growth(self) -> dict[str, Growth]:
        grown = {kind: _growth(samples) for kind, samples in sorted(self.samples.items())}
        return {kind: growth for kind, growth in grown.items() if growth is not None}


def _growth(samples: Sequence[Sample]) -> Growth | None:
    lives = _lives(samples)
    warm = [sample for life in lives for sample in life]
    if not warm:
        return None
    begun, third_s = warm_span(warm)
    first = [sample.mib for sample in warm if sample.at <= begun + third_s]
    last = [sample.mib for sample in warm if sample.at >= begun + 2 * third_s]
    if not first or not last:
        return None
    return Growth(mean(first), mean(last), _slope(lives))


def warm_span(samples: Sequence[Sample]) -> tuple[float, float]:
    """The first moment and a third of the time."""
    times = [sample.at for sample in samples]
    return min(times), (max(times) - min(times)) / 3


def _lives(samples: Sequence[Sample]) -> list[list[Sample]]:
    """Each process's samples in order, without its warm-up."""
    by_pid = defaultdict[int, list[Sample]](list)
    for sample in samples:
        by_pid[sample.pid].append(sample)
    return [[s for s in life if s.at >= life[0].at + WARM_UP_S] for life in by_pid.values()]


def _slope(lives: Sequence[Sequence[Sample]]) -> float | None:
    """MiB a minute: all growth between samples of the same life over all time between them."""
    steps = [pair for life in lives for pair in pairwise(life)]
    time_s = sum(after.at - before.at for before, after in steps)
    if not time_s:
        return None
    return 60 * sum(after.mib - before.mib for before, after in steps) / time_s
