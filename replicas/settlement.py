"""What a replica tells the ingress at the end of a request: forecast, figure, and why they differ.

Values only. `replicas.kv.settling` finds the causes.
"""

from dataclasses import dataclass
from enum import StrEnum

from replicas.engines.protocol import Output


class Cause(StrEnum):
    """Why an engine's figure is another than the forecast. The list is closed."""

    UNCONFIRMED = "unconfirmed"
    """Stored before the decision; the event was still on its way to the index."""
    IN_FLIGHT = "in_flight"
    """Stored after the decision, by a request that was under way."""
    EVICTED = "evicted"
    """Removed after what the index knew at the decision."""
    REROUTED = "rerouted"
    """Another replica took the request than the one of the forecast."""
    LOAD_FAILED = "load_failed"
    """Stored KV that was to be loaded was not."""
    INDEX_STALE = "index_stale"
    """The index knew something else of the replica than it had been told by then."""
    FALLBACK = "fallback"
    """Decided without the index, which forecasts nothing."""
    UNEXPLAINED = "unexplained"
    """The replica's log proves none of the others: a defect."""


@dataclass(frozen=True, slots=True)
class Settlement:
    """The last item of every complete answer to a request with a `Routing`; not for the client.

    One entry per engine request, choices of one prompt side by side. A cause is None where the
    forecast held. `output` is the engine's report of the answer's ids, where it was asked for.
    """

    block_size: int
    cached_tokens: tuple[int, ...]
    forecast_blocks: tuple[int, ...]
    causes: tuple[Cause | None, ...]
    output: Output | None = None
