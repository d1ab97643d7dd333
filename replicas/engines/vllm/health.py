"""When the engine last made a step, the difference between a busy engine and a stuck one."""

import time
from collections.abc import Callable
from typing import Any

from vllm.v1.metrics.loggers import StatLoggerBase
from vllm.v1.metrics.stats import SchedulerStats


class StepClock:
    """Time of the last sign of progress, in monotonic seconds.

    `kv_usage`: share of the block pool that requests held after the last step.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.kv_usage = 0.0
        self._clock = clock
        self._last_s = clock()

    def tick(self) -> None:
        """A step ended, or work began on an idle engine."""
        self._last_s = self._clock()

    def idle_s(self) -> float:
        """Seconds since the last tick."""
        return self._clock() - self._last_s

    def stat_logger(self, config: Any, engine_index: int = 0) -> StatLoggerBase:
        """A factory for vLLM, which calls its statistics loggers once per step."""
        return _StepLogger(self)


class _StepLogger(StatLoggerBase):
    def __init__(self, steps: StepClock) -> None:
        self._steps = steps

    def record(
        self, scheduler_stats: SchedulerStats | None, *_args: object, **_kwargs: object
    ) -> None:
        self._steps.tick()
        if scheduler_stats is not None:
            self._steps.kv_usage = scheduler_stats.kv_cache_usage

    def log_engine_initialized(self) -> None:
        self._steps.tick()
