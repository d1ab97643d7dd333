"""Every metric of the ingress, in one table. Ray exports them with `ray_` before the name.

Tags have few values each: never a request, a session, a block or a replica.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Protocol


class Kind(Enum):
    COUNTER = auto()
    GAUGE = auto()
    HISTOGRAM = auto()


@dataclass(frozen=True, slots=True)
class Metric:
    """`buckets` are upper bounds, in the unit of the name."""

    name: str
    kind: Kind
    description: str
    tags: tuple[str, ...] = ("model",)
    buckets: tuple[float, ...] = ()


SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)

REQUESTS = Metric(
    "warmpath_requests",
    Kind.COUNTER,
    "Requests that ended, by HTTP status; 499: the client went away.",
    ("model", "route", "status"),
)
TTFT = Metric(
    "warmpath_ttft_s",
    Kind.HISTOGRAM,
    "From the request's arrival to the first bytes of its streamed answer.",
    ("model", "route"),
    SECONDS,
)
DECISIONS = Metric(
    "warmpath_decisions",
    Kind.COUNTER,
    "Decisions by policy and reason; a reason `fallback:...` was made without the index.",
    ("model", "policy", "reason"),
)
FALLBACKS = Metric("warmpath_fallbacks", Kind.COUNTER, "Decisions made without the block index.")
REROUTED = Metric(
    "warmpath_rerouted", Kind.COUNTER, "Requests that another replica took than was decided."
)
RETRIES = Metric(
    "warmpath_retries", Kind.COUNTER, "Attempts beyond the first: a replica was lost unheard."
)
PROMPT_TOKENS = Metric("warmpath_prompt_tokens", Kind.COUNTER, "Of settled engine requests.")
OVERLAP_TOKENS = Metric(
    "warmpath_overlap_tokens", Kind.COUNTER, "Confirmed on the chosen replica at the decision."
)
FORECAST_TOKENS = Metric("warmpath_forecast_tokens", Kind.COUNTER, "Expected not to be computed.")
LOAD_TOKENS = Metric(
    "warmpath_load_tokens", Kind.COUNTER, "Of the forecast: those to be loaded from KV stores."
)
CACHED_TOKENS = Metric(
    "warmpath_cached_tokens", Kind.COUNTER, "What the engine reported as not computed."
)
DIFFERENCES = Metric(
    "warmpath_forecast_differences",
    Kind.COUNTER,
    "Engine requests whose figure was another than the forecast, by cause.",
    ("model", "cause"),
)
UNSETTLED = Metric(
    "warmpath_unsettled", Kind.COUNTER, "Answers that ended before their settlement came."
)
IN_FLIGHT = Metric("warmpath_in_flight", Kind.GAUGE, "Requests of this ingress that replicas have.")
INDEX_CALLS = Metric(
    "warmpath_index_calls",
    Kind.GAUGE,
    "Counts of this ingress's traffic with the block index since its start, by kind.",
    ("model", "kind"),
)
INDEX_STATE = Metric(
    "warmpath_index_state",
    Kind.GAUGE,
    "The block index as it says itself: sizes, bookings, event batches by outcome, resyncs.",
    ("model", "kind"),
)

METRICS: tuple[Metric, ...] = (
    REQUESTS,
    TTFT,
    DECISIONS,
    FALLBACKS,
    REROUTED,
    RETRIES,
    PROMPT_TOKENS,
    OVERLAP_TOKENS,
    FORECAST_TOKENS,
    LOAD_TOKENS,
    CACHED_TOKENS,
    DIFFERENCES,
    UNSETTLED,
    IN_FLIGHT,
    INDEX_CALLS,
    INDEX_STATE,
)


class Meters(Protocol):
    """Where values go."""

    def add(self, metric: Metric, tags: Mapping[str, str], amount: float = 1) -> None:
        """To a counter; 0 adds nothing."""
        ...

    def observe(self, metric: Metric, tags: Mapping[str, str], value: float) -> None:
        """A sample of a histogram, or a gauge's value from here on."""
        ...
