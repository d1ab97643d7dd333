"""What an engine's KV connector has counted, as its replica knows it."""

from collections import Counter

from vllm.v1.metrics.loggers import StatLoggerBase
from vllm.v1.metrics.stats import SchedulerStats


class TransferCounts:
    """Sums by kind since the engine's start; as of its last step."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def counts(self) -> dict[str, int]:
        return dict(self._counts)

    def stat_logger(self, config: object, engine_index: int = 0) -> StatLoggerBase:
        """A factory for vLLM, which calls its statistics loggers once per step."""
        return _TransferLogger(self._counts)


class _TransferLogger(StatLoggerBase):
    def __init__(self, counts: Counter[str]) -> None:
        self._counts = counts

    def record(
        self, scheduler_stats: SchedulerStats | None, *_args: object, **_kwargs: object
    ) -> None:
        if scheduler_stats is not None and scheduler_stats.kv_connector_stats:
            self._counts.update(scheduler_stats.kv_connector_stats)

    def log_engine_initialized(self) -> None:
        pass
