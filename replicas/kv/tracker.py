"""One engine's cache as its replica knows it: followed, repaired, told to the index, judged by."""

import asyncio
import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

from replicas.engines.protocol import Engine, EngineInfo, EngineReport, EngineRequest, Routing
from replicas.kv.break_even import BreakEven
from replicas.kv.event_log import EventLog
from replicas.kv.feed import EngineFeed
from replicas.kv.mirror import Mirror
from replicas.kv.settling import Witness, causes_of
from replicas.kv.subscriber import EventSubscriber, SubscriberSettings
from replicas.settlement import Cause, Settlement
from router.core.errors import ConfigurationError, EngineDead
from router.core.types import Incarnation, ReplicaId, StoreId
from router.serve.index_publisher import (
    EventConnection,
    IndexPublisher,
    PublisherSettings,
    ReplicaTraits,
)

logger = logging.getLogger(__name__)

_PUBLISHER = PublisherSettings(retry_after_s=0.25)
_RESTART_AFTER_S = 1.0
_CATCH_UPS = 4


@dataclass(frozen=True, slots=True)
class TrackerSettings:
    """While the cache is known only in part, each idle moment is looked for every so often."""

    repair_interval_s: float = 0.2
    late_event_s: float = 0.05
    subscriber: SubscriberSettings = SubscriberSettings()


class CacheTracker:
    """For one life of an engine that runs; owned by one event loop."""

    def __init__(
        self,
        engine: Engine,
        info: EngineInfo,
        replica_id: ReplicaId,
        settings: TrackerSettings | None = None,
    ) -> None:
        if info.kv_events_endpoint is None:
            raise ConfigurationError("kv_events_endpoint", "the engine publishes no KV events")
        self.repairs = 0
        self.publisher_failures = 0
        self.incarnation = Incarnation(time.time_ns())
        self._settings = settings or TrackerSettings()
        self._engine = engine
        self._block_size = info.block_size
        self._cache_tokens = info.total_blocks * info.block_size
        self._replica_id = replica_id
        self._log = EventLog()
        self._mirror = Mirror(replica_id, self.incarnation, info.block_size, log=self._log)
        self._feed = EngineFeed(self._mirror)
        self._subscriber = EventSubscriber(
            info.kv_events_endpoint,
            info.kv_replay_endpoint,
            self._feed,
            self._on_applied,
            self._settings.subscriber,
        )
        self._publisher: IndexPublisher | None = None
        self._store_id: StoreId | None = None
        self._break_even = BreakEven(info.block_size)
        self._telling: asyncio.Task[None] | None = None
        self._followers: list[asyncio.Task[None]] = []

    def follow(self) -> None:
        """Begins to read the engine's events."""
        self._followers += [
            asyncio.create_task(self._subscriber.run(), name="kv-events"),
            asyncio.create_task(self._repair(), name="kv-repair"),
        ]
        for task in self._followers:
            task.add_done_callback(_log_failure)

    def publish(self, connection: EventConnection, store_id: StoreId | None = None) -> None:
        """Begins to tell the index, now and whenever it comes back; `store_id`: of the node's KV
        store, if the engine uses one."""
        self._store_id = store_id
        lives = _lives(self.incarnation)
        self._publisher = IndexPublisher(
            connection,
            self._mirror,
            self._replica_id,
            lives.__next__,
            _PUBLISHER,
            self.traits,
        )
        self._telling = asyncio.create_task(self._tell(self._publisher), name="kv-index")

    def holds(self, hashes: Sequence[int]) -> bool:
        """Whether all these blocks are known to be in the engine's cache."""
        return all(block_hash in self._mirror for block_hash in hashes)

    @property
    def is_partial(self) -> bool:
        """Events were lost: the engine may hold blocks that are not known of."""
        return self._mirror.is_partial

    @property
    def index_lag_s(self) -> float:
        """Age of the oldest change that the index has not confirmed; 0 where it knows all."""
        return 0.0 if self._publisher is None else self._publisher.lag_s

    async def catch_up(self) -> None:
        """Applies what the engine has published until now."""
        await self._subscriber.catch_up()

    async def reset_prefix_cache(self) -> bool:
        """The engine's reset, known here and told to the index at once.

        The engine itself says so only with its next step.
        """
        async with self._subscriber.paused():
            is_reset = await self._engine.reset_prefix_cache()
            if is_reset:
                self._mirror.reset(time.time())
        self._on_applied()
        return is_reset

    async def settlement(
        self, request: EngineRequest, routing: Routing, report: EngineReport
    ) -> Settlement:
        """Compares and explains. Where an event seems to be missing, gives it a moment to come."""
        self._subscriber.doubt()
        causes = self._causes(request, routing, report)
        for _ in range(_CATCH_UPS):
            if Cause.UNEXPLAINED not in causes:
                break
            await self._subscriber.catch_up()
            causes = self._causes(request, routing, report)
            await asyncio.sleep(self._settings.late_event_s)
        return Settlement(
            self._block_size,
            report.cached_tokens,
            routing.forecast_blocks,
            causes,
            report.output,
        )

    def check(self) -> None:
        """Raises what ended the reading of events; without them the replica is of no use."""
        for task in self._followers:
            if task.done() and not task.cancelled() and (failure := task.exception()) is not None:
                raise EngineDead(f"the replica has lost track of its cache: {failure}") from failure

    def counters(self) -> dict[str, int]:
        """Everything counted since the start, by name; `index_…` of what the index was told."""
        told = {} if self._publisher is None else asdict(self._publisher.counters)
        return {
            "blocks": len(self._mirror),
            "repairs": self.repairs,
            "publisher_failures": self.publisher_failures,
            **asdict(self._mirror.counters),
            **asdict(self._feed.counters),
            **asdict(self._subscriber.counters),
            **{f"index_{name}": count for name, count in told.items()},
        }

    async def close(self) -> None:
        """Ends all tasks and takes leave of the index. Idempotent."""
        tasks = [*self._followers, *filter(None, [self._telling])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        publisher, self._publisher = self._publisher, None
        if publisher is not None:
            await publisher.close()
        self._subscriber.close()

    async def _tell(self, publisher: IndexPublisher) -> None:
        """Serving goes on whatever happens here; so does this."""
        while True:
            try:
                await publisher.run()
            except Exception:
                self.publisher_failures += 1
                logger.exception("telling the block index failed; it begins anew")
                await asyncio.sleep(_RESTART_AFTER_S)

    def traits(self) -> ReplicaTraits:
        """What the replica says of itself to the index."""
        if self._store_id is None:
            return ReplicaTraits(self._cache_tokens)
        now = time.monotonic()
        self._break_even.observe(self._engine.work(), now)
        return ReplicaTraits(self._cache_tokens, self._store_id, self._break_even.line(now))

    def _on_applied(self) -> None:
        if self._publisher is not None:
            self._publisher.notify()

    async def _repair(self) -> None:
        """What is known only in part becomes exact by an empty cache, when nobody needs it."""
        while True:
            await asyncio.sleep(self._settings.repair_interval_s)
            if self._mirror.is_partial and self._engine.num_unfinished() == 0:
                self.repairs += await self.reset_prefix_cache()

    def _causes(
        self, request: EngineRequest, routing: Routing, report: EngineReport
    ) -> tuple[Cause | None, ...]:
        is_partial = self._mirror.is_partial
        witness = Witness(self._replica_id, self._log, self._mirror.__contains__, is_partial)
        return causes_of(request, routing, report, self._block_size, witness)


def _log_failure(task: "asyncio.Task[None]") -> None:
    if not task.cancelled() and task.exception() is not None:
        logger.error("the replica lost track of its cache", exc_info=task.exception())


def _lives(first: Incarnation) -> Iterator[Incarnation]:
    """The one that the replica is known by; then others, should the index end that one."""
    yield first
    while True:
        first = Incarnation(max(time.time_ns(), first + 1))
        yield first
