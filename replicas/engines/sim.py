"""The simulated engine in real time: an `Engine` without weights.

One task runs passes one after the other and sleeps until each is due; nothing runs while idle.
"""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator

from replicas.engines.protocol import EngineInfo, EngineRequest
from replicas.engines.sim_faults import FaultKind, FaultScript, SimFault
from replicas.engines.sim_inflight import Inflight
from replicas.engines.sim_publisher import SimEventPublisher
from replicas.sim.generation import Generation, GenerationLimits
from replicas.sim.latency import LinearLatency
from replicas.sim.pool import BlockPool
from replicas.sim.scheduler import Scheduler, SchedulerLimits
from replicas.sim.sequence import Drawn, Pass, SimSequence
from router.configuration import SimConfig
from router.core.errors import ConfigurationError, EngineDead, EngineError

logger = logging.getLogger(__name__)


class SimEngine:
    """Serves one simulated model, named `model` in its answers.

    Raises `ConfigurationError` where the longest request would not fit into the pool.
    `stuck_after_s` is how long a pass may be overdue before the engine counts as stuck.
    """

    def __init__(self, config: SimConfig, model: str, *, stuck_after_s: float = 5.0) -> None:
        if config.max_model_len > config.total_blocks * config.block_size:
            raise ConfigurationError(
                "sim.max_model_len", "is above sim.total_blocks * sim.block_size"
            )
        self._config = config
        self._model = model
        self._stuck_after_s = stuck_after_s
        limits = SchedulerLimits(
            config.block_size, config.max_num_batched_tokens, config.max_num_seqs
        )
        self._pool = BlockPool(config.total_blocks)
        self._scheduler = Scheduler(self._pool, limits)
        self._latency = LinearLatency(
            config.prefill_ms_per_token, config.prefill_base_ms, config.decode_ms_per_token
        )
        self._owners: dict[SimSequence, Inflight] = {}
        self._inflight: dict[Inflight, None] = {}
        self._work = asyncio.Event()
        self._faults = FaultScript()
        self._due_s: float | None = None
        self._death: EngineDead | None = EngineDead("The engine is not running.")
        self._publisher: SimEventPublisher | None = None
        self._loop: asyncio.Task[None] | None = None

    async def start(self) -> EngineInfo:
        assert self._loop is None, "started twice"
        self._publisher = SimEventPublisher()
        self._death = None
        self._loop = asyncio.create_task(self._run(self._publisher), name="sim-engine")
        self._loop.add_done_callback(self._on_loop_end)
        return EngineInfo(
            model=self._model,
            block_size=self._config.block_size,
            max_model_len=self._config.max_model_len,
            total_blocks=self._config.total_blocks,
            hash_algorithm="xxh3_64",
            kv_events_endpoint=self._publisher.events_endpoint,
            kv_replay_endpoint=self._publisher.replay_endpoint,
        )

    async def generate(self, request: EngineRequest) -> AsyncGenerator[bytes, None]:
        inflight = self._admit(request)
        try:
            while (part := await inflight.take()) is not None:
                yield part
        finally:
            self._release(inflight)

    async def reset_prefix_cache(self) -> bool:
        return self._pool.reset()

    def num_unfinished(self) -> int:
        return len(self._inflight)

    @property
    def active_blocks(self) -> int:
        """Blocks that unfinished requests hold."""
        return self._pool.active_blocks

    async def check_health(self) -> None:
        if self._death is not None:
            raise self._death
        overdue_s = 0.0 if self._due_s is None else time.monotonic() - self._due_s
        if overdue_s > self._stuck_after_s:
            raise EngineDead("The engine is stuck.")

    async def stop(self) -> None:
        self._die(EngineDead("The engine was stopped."))
        if self._loop is not None:
            self._loop.cancel()
            await asyncio.gather(self._loop, return_exceptions=True)
        if self._publisher is not None:
            await self._publisher.close()
        self._loop = self._publisher = None

    def inject(self, fault: SimFault) -> None:
        """Plays a fault, for tests; several wait for each other. No configuration reaches this."""
        self._faults.add(fault)
        self._work.set()

    def _admit(self, request: EngineRequest) -> Inflight:
        if self._death is not None:
            raise self._death
        limits = GenerationLimits(
            self._model,
            self._config.block_size,
            self._config.max_model_len,
            self._config.default_max_tokens,
        )
        inflight = Inflight(Generation(request, limits, created=int(time.time())))
        self._inflight[inflight] = None
        for sequence in inflight.generation.sequences:
            self._owners[sequence] = inflight
            self._scheduler.add(sequence)
        self._work.set()
        return inflight

    def _release(self, inflight: Inflight) -> None:
        """Takes whatever is left of a request out of the engine. Idempotent."""
        for sequence in inflight.generation.sequences:
            self._scheduler.abort(sequence)
            self._owners.pop(sequence, None)
        self._inflight.pop(inflight, None)

    async def _run(self, publisher: SimEventPublisher) -> None:
        while True:
            await self._play_fault()
            if self._death is not None:
                return
            planned = self._scheduler.plan()
            if planned is None:
                self._due_s = None
                self._work.clear()
                await self._work.wait()
            else:
                await self._wait_for(planned)
                drawn, events = self._scheduler.complete(planned)
                if events:
                    publisher.publish(events)
                for token in drawn:
                    self._deliver(token)

    async def _wait_for(self, planned: Pass) -> None:
        """Sleeps until the pass is due, counted from when the one before was due."""
        now_s = time.monotonic()
        duration_s = self._latency.pass_s(planned)
        is_behind = self._due_s is None or now_s - self._due_s > duration_s
        start_s = now_s if is_behind or self._due_s is None else self._due_s
        self._due_s = start_s + duration_s
        await asyncio.sleep(max(self._due_s - now_s, 0.0))

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
        part, is_choice_finished = inflight.generation.accept(drawn)
        inflight.put(part)
        if is_choice_finished:
            self._scheduler.abort(drawn.sequence)
        if inflight.generation.is_finished:
            inflight.put(inflight.generation.closing())
            self._end(inflight)

    def _end(self, inflight: Inflight, error: EngineError | None = None) -> None:
        self._release(inflight)
        inflight.close(error)

    async def _play_fault(self) -> None:
        """Dies or stands still if that is due; a failing request waits for its next token."""
        fault = self._faults.due()
        if fault is FaultKind.DIE:
            self._faults.played()
            self._die(EngineDead("The engine died."))
        elif fault is FaultKind.STALL:
            self._due_s = time.monotonic()
            await asyncio.Event().wait()

    def _die(self, death: EngineDead) -> None:
        self._death = death
        for inflight in list(self._inflight):
            self._end(inflight, death)

    def _on_loop_end(self, loop: "asyncio.Task[None]") -> None:
        if not loop.cancelled() and (failure := loop.exception()) is not None:
            logger.error("the simulated engine's loop failed", exc_info=failure)
            self._die(EngineDead("The engine died."))
