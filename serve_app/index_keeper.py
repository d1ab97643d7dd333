"""Keeps one model's block index in being, and reports what it says of itself.

The index is never required: whatever fails here costs cache hits, not requests.
"""

import asyncio
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import msgspec
import ray
from ray.actor import ActorHandle

from router.core.errors import IndexUnavailable
from router.serve.generations import open_index
from router.serve.index_client import IndexClient
from router.serve.index_settings import IndexSettings
from serve_app.errors import CountFault
from serve_app.observe.metrics import IN_FLIGHT, INDEX_CALLS, INDEX_STATE, Meters

logger = logging.getLogger(__name__)

INTERVAL_S = 5.0
CALL_LIMIT_S = 2.0


@dataclass(frozen=True, slots=True)
class IndexKeeper:
    """Of one application and model, in one ingress; several do no harm to each other."""

    application: str
    model: str
    settings: IndexSettings
    client: IndexClient
    meters: Meters
    count: CountFault

    async def run(self) -> None:
        """Makes or configures the index, and again whenever it is gone. Ends by cancellation."""
        actor: ActorHandle | None = None
        while True:
            try:
                if actor is None:
                    actor = await asyncio.to_thread(
                        open_index, self.application, self.model, self.settings
                    )
                await self._report(actor)
            except (IndexUnavailable, ray.exceptions.RayError, TimeoutError) as error:
                actor = None
                self.count("index_unavailable")
                logger.warning("the block index of %s does not answer: %s", self.model, error)
            except Exception:
                actor = None
                self.count("index_unavailable")
                logger.exception("keeping the block index of %s failed", self.model)
            await asyncio.sleep(INTERVAL_S)

    async def _report(self, actor: ActorHandle) -> None:
        in_flight = sum(self.client.in_flight().values())
        self.meters.observe(IN_FLIGHT, {"model": self.model}, in_flight)
        for kind, count in self.client.counters().items():
            self.meters.observe(INDEX_CALLS, {"model": self.model, "kind": kind}, count)
        async with asyncio.timeout(CALL_LIMIT_S):
            stats = msgspec.msgpack.decode(await actor.stats.remote())
        for kind, value in flattened(stats):
            self.meters.observe(INDEX_STATE, {"model": self.model, "kind": kind}, value)


def flattened(stats: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, float]]:
    """Every number in nested maps, by its path; an incarnation is a name, not a quantity."""
    for name, value in stats.items():
        if isinstance(value, Mapping):
            yield from flattened(value, f"{prefix}{name}.")
        elif isinstance(value, int | float) and name != "incarnation":
            yield f"{prefix}{name}", float(value)
