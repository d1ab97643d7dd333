"""The simulated engine in real time: an `Engine` without weights.

Requests in, bytes out; the step loop beside it runs the passes, and nothing runs while idle.
"""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator

from replicas.engines.protocol import EngineInfo, EngineReport, EngineRequest, EngineWork
from replicas.engines.sim_faults import FaultKind, FaultScript, SimFault
from replicas.engines.sim_inflight import Inflight
from replicas.engines.sim_load import NoObserver, SimLoad, SimObserver
from replicas.engines.sim_publisher import Endpoints, SimEventPublisher
from replicas.engines.sim_steps import StepLoop
from replicas.engines.sim_timing import latency_of
from replicas.sim.generation import Generation, GenerationLimits
from replicas.sim.pool import BlockPool
from replicas.sim.scheduler import Scheduler, SchedulerLimits
from replicas.sim.sequence import Drawn, SimSequence
from router.configuration import SimConfig
from router.core.errors import ConfigurationError, EngineDead, EngineError

logger = logging.getLogger(__name__)


class SimEngine:
    """Serves one simulated model, named `model` in its answers.

    Raises `ConfigurationError` where the longest request would not fit into the pool.
    `stuck_after_s` is how long a pass may be overdue before the engine counts as stuck.
    """

    def __init__(
        self,
        config: SimConfig,
        model: str,
        *,
        stuck_after_s: float = 5.0,
        endpoints: Endpoints | None = None,
        observer: SimObserver | None = None,
    ) -> None:
        if config.max_model_len > config.total_blocks * config.block_size:
            raise ConfigurationError(
                "sim.max_model_len", "is above sim.total_blocks * sim.block_size"
            )
        self._config = config
        self._model = model
        self._stuck_after_s = stuck_after_s
        self._endpoints = endpoints
        self._observer = observer or NoObserver()
        self._pool = BlockPool(config.total_blocks)
        self._scheduler = Scheduler(self._pool, _scheduler_limits(config))
        self._faults = FaultScript()
        self._steps = StepLoop(self._pool, self._scheduler, latency_of(config), self._faults)
        self._owners: dict[SimSequence, Inflight] = {}
        self._inflight: dict[Inflight, None] = {}
        self._cause_of_death: str | None = "The engine is not running."
        self._publisher: SimEventPublisher | None = None
        self._loop: asyncio.Task[None] | None = None

    async def start(self) -> EngineInfo:
        assert self._loop is None, "an engine has one life"
        self._publisher = SimEventPublisher(self._endpoints)
        self._cause_of_death = None
        steps = self._steps.run(self._deliver, self._publisher.publish)
        self._loop = asyncio.create_task(steps, name="sim-engine")
        self._loop.add_done_callback(self._on_loop_end)
        return self._info(self._publisher)

    def _info(self, publisher: SimEventPublisher) -> EngineInfo:
        return EngineInfo(
            model=self._model,
            block_size=self._config.block_size,
            max_model_len=self._config.max_model_len,
            total_blocks=self._config.total_blocks,
            hash_algorithm="xxh3_64",
            kv_events_endpoint=publisher.events_endpoint,
            kv_replay_endpoint=publisher.replay_endpoint,
        )

    async def generate(self, request: EngineRequest) -> AsyncGenerator[bytes | EngineReport, None]:
        inflight = self._admit(request)
        try:
            while (part := await inflight.take()) is not None:
                yield part
            yield inflight.generation.report()
        finally:
            self._release(inflight)

    async def reset_prefix_cache(self) -> bool:
        return self._pool.reset()

    def num_unfinished(self) -> int:
        return len(self._inflight)

    def kv_usage(self) -> float:
        return self._pool.active_blocks / self._config.total_blocks

    def work(self) -> EngineWork:
        return EngineWork()

    @property
    def active_blocks(self) -> int:
        """Blocks that unfinished requests hold."""
        return self._pool.active_blocks

    def load(self) -> SimLoad:
        scheduler, pool = self._scheduler, self._pool
        kv_usage = pool.active_blocks / pool.total_blocks
        return SimLoad(scheduler.running, scheduler.waiting, kv_usage, scheduler.preemptions)

    def transfer_counts(self) -> dict[str, int]:
        return {}

    async def check_health(self) -> None:
        self._raise_if_dead()
        if self._steps.overdue_s() > self._stuck_after_s:
            raise EngineDead("The engine is stuck.")

    async def stop(self) -> None:
        self._die("The engine was stopped.")
        if self._loop is not None:
            self._loop.cancel()
            await asyncio.gather(self._loop, return_exceptions=True)
        if self._publisher is not None:
            await self._publisher.close()
            self._publisher = None

    def inject(self, fault: SimFault) -> None:
        """Plays a fault, for tests; several wait for each other. No configuration reaches this."""
        self._faults.add(fault)
        self._steps.wake()

    def _admit(self, request: EngineRequest) -> Inflight:
        self._raise_if_dead()
        limits = _generation_limits(self._config, self._model)
        generation = Generation(request, limits, created=int(time.time()))
        inflight = Inflight(generation, time.monotonic())
        self._inflight[inflight] = None
        for sequence in inflight.generation.sequences:
            self._owners[sequence] = inflight
            self._scheduler.add(sequence)
        self._steps.wake()
        return inflight

    def _release(self, inflight: Inflight) -> None:
        """Takes whatever is left of a request out of the engine. Idempotent."""
        for sequence in inflight.generation.sequences:
            self._scheduler.abort(sequence)
            self._owners.pop(sequence, None)
        self._inflight.pop(inflight, None)

    def _deliver(self, drawn: Drawn) -> None:
        inflight = self._owners.get(drawn.sequence)
        if inflight is None:
            return
        fault = self._faults.due()
        if fault is FaultKind.FAIL_REQUEST:
            self._faults.played()
            self._end(inflight, EngineError("The engine failed to generate."))
        if fault is not None:
            return
        self._faults.count_token()
        self._observe(inflight, drawn.sequence)
        part, is_choice_finished = inflight.generation.accept(drawn)
        inflight.put(part)
        if is_choice_finished:
            self._scheduler.abort(drawn.sequence)
        if inflight.generation.is_finished:
            inflight.put(inflight.generation.closing())
            duration_s = time.monotonic() - inflight.arrived_s
            generation = inflight.generation
            self._observer.ended(generation.usage(), generation.finish_reason, duration_s)
            self._end(inflight)

    def _observe(self, inflight: Inflight, sequence: SimSequence) -> None:
        now_s, before_s = time.monotonic(), inflight.token_s.get(sequence)
        waited_s = now_s - (inflight.arrived_s if before_s is None else before_s)
        self._observer.token(waited_s, is_first=before_s is None)
        inflight.token_s[sequence] = now_s

    def _end(self, inflight: Inflight, error: EngineError | None = None) -> None:
        self._release(inflight)
        inflight.close(error)

    def _die(self, cause: str) -> None:
        self._cause_of_death = cause
        for inflight in list(self._inflight):
            self._end(inflight, EngineDead(cause))

    def _raise_if_dead(self) -> None:
        if self._cause_of_death is not None:
            raise EngineDead(self._cause_of_death)

    def _on_loop_end(self, loop: "asyncio.Task[None]") -> None:
        if not loop.cancelled() and (failure := loop.exception()) is not None:
            logger.error("the simulated engine's step loop ended", exc_info=failure)
            self._die("The engine died.")


def _scheduler_limits(config: SimConfig) -> SchedulerLimits:
    return SchedulerLimits(config.block_size, config.max_num_batched_tokens, config.max_num_seqs)


def _generation_limits(config: SimConfig, model: str) -> GenerationLimits:
    return GenerationLimits(
        model, config.block_size, config.max_model_len, config.default_max_tokens
    )
