"""How long prefills took, from vLLM's own statistics of ended requests."""

from typing import Any

from vllm.v1.metrics.loggers import StatLoggerBase
from vllm.v1.metrics.stats import IterationStats, SchedulerStats


class PrefillMeter:
    """Sums since the engine's start, of computed prompt tokens only."""

    def __init__(self) -> None:
        self.prefills = 0
        self.tokens = 0
        self.ms = 0.0

    def stat_logger(self, config: Any, engine_index: int = 0) -> StatLoggerBase:
        """A factory for vLLM, which calls its statistics loggers once per step."""
        return _PrefillLogger(self)


class _PrefillLogger(StatLoggerBase):
    def __init__(self, meter: PrefillMeter) -> None:
        self._meter = meter

    def record(
        self,
        scheduler_stats: SchedulerStats | None,
        iteration_stats: IterationStats | None,
        *_args: object,
        **_kwargs: object,
    ) -> None:
        for request in iteration_stats.finished_requests if iteration_stats else ():
            if request.prefill_time > 0:
                self._meter.prefills += 1
                self._meter.tokens += request.num_prompt_tokens - request.num_cached_tokens
                self._meter.ms += request.prefill_time * 1e3

    def log_engine_initialized(self) -> None:
        pass
