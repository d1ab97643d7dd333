"""The real engine: vLLM's AsyncLLM behind the `Engine` protocol.

Importing this module imports vLLM; `opening.open_engine` sets the environment first.
"""

import asyncio
from argparse import Namespace
from collections.abc import AsyncGenerator
from contextlib import aclosing

from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.utils.gc_utils import freeze_gc_heap
from vllm.v1.engine.exceptions import EngineDeadError

from replicas.engines.protocol import EngineInfo, EngineReport, EngineRequest, EngineWork
from replicas.engines.vllm.arguments import HASH_ALGORITHM, vllm_arguments
from replicas.engines.vllm.calls import engine_request_ids
from replicas.engines.vllm.counting import CountingLLM
from replicas.engines.vllm.event_sockets import EventSockets
from replicas.engines.vllm.failures import translated
from replicas.engines.vllm.health import StepClock
from replicas.engines.vllm.kv_transfer import transfer_config
from replicas.engines.vllm.late_metrics import LateRayMetrics
from replicas.engines.vllm.openai_layer import OpenAiLayer
from replicas.engines.vllm.prefill_meter import PrefillMeter
from replicas.engines.vllm.transfer_counts import TransferCounts
from replicas.engines.vllm.warmup import warmup_requests
from replicas.kv.connector.settings import ConnectorSettings
from router.configuration import ModelConfig
from router.core.errors import EngineDead, RequestRejected, WarmpathError

STOP_TIMEOUT_S = 10.0


class VllmEngine:
    """One engine, with a KV store where it has a `connector`; `exports_ray_metrics` sends vLLM's
    metrics through Ray's exporter."""

    def __init__(
        self,
        model: ModelConfig,
        connector: ConnectorSettings | None = None,
        *,
        exports_ray_metrics: bool = False,
    ) -> None:
        self._model = model
        self._connector = connector
        self._exports_ray_metrics = exports_ray_metrics
        self._steps = StepClock()
        self._transfers = TransferCounts()
        self._prefills = PrefillMeter()
        self._llm: CountingLLM | None = None
        self._layer: OpenAiLayer | None = None
        self._sockets: EventSockets | None = None
        self._is_stopped = False

    async def start(self) -> EngineInfo:
        """Takes 20 to 60 s for the tiny model on a CPU; raises `ConfigurationError`."""
        self._is_stopped = False
        self._sockets = EventSockets()
        try:
            return await self._start(self._sockets)
        except BaseException:
            await self.stop()
            raise

    async def _start(self, sockets: EventSockets) -> EngineInfo:
        arguments = await asyncio.to_thread(
            vllm_arguments,
            self._model,
            kv_events_config=sockets.config(),
            kv_transfer_config=transfer_config(self._connector),
        )
        llm = await asyncio.to_thread(self._load, arguments)
        self._layer = await OpenAiLayer.build(llm, arguments)
        for request in warmup_requests(self._model.name):
            await self._drain(request)
        freeze_gc_heap()  # a look at all that the start has made would hold up every stream
        return self._info(llm, sockets)

    def _load(self, arguments: Namespace) -> CountingLLM:
        """Blocks until the weights are loaded; a thread, so `stop` may come meanwhile."""
        loggers = [
            self._steps.stat_logger,
            self._transfers.stat_logger,
            self._prefills.stat_logger,
        ]
        if self._exports_ray_metrics:
            loggers.append(LateRayMetrics)
        engine_args = AsyncEngineArgs.from_cli_args(arguments)
        llm: CountingLLM = CountingLLM.from_engine_args(engine_args, stat_loggers=loggers)
        self._llm = llm
        if self._is_stopped:
            llm.shutdown(STOP_TIMEOUT_S)
        return llm

    def _info(self, llm: CountingLLM, sockets: EventSockets) -> EngineInfo:
        cache = llm.vllm_config.cache_config
        return EngineInfo(
            model=self._model.name,
            block_size=cache.block_size,
            max_model_len=llm.model_config.max_model_len,
            total_blocks=cache.num_gpu_blocks,
            hash_algorithm=HASH_ALGORITHM,
            kv_events_endpoint=sockets.events_endpoint,
            kv_replay_endpoint=sockets.replay_endpoint,
        )

    async def generate(self, request: EngineRequest) -> AsyncGenerator[bytes | EngineReport, None]:
        llm, layer = self._running()
        if self.num_unfinished() == 0:
            self._steps.tick()
        ids = engine_request_ids(request)
        llm.watch(ids, keeps_tokens=request.reports_tokens)
        cancels = _cancels()
        is_complete = False
        try:
            async with aclosing(layer.answer(request)) as answer:
                async for part in answer:
                    yield part.encode()
            is_complete = True
            yield llm.report(ids)
        except Exception as failure:  # the edge to vLLM, whose errors have many types
            if _cancels() > cancels:
                raise asyncio.CancelledError from failure  # vLLM answers it like a bad request
            error = _translated(llm, failure, request.request_id)
            # Tracebacks of refusals would bring the client's words into logs.
            raise error from None if isinstance(error, RequestRejected) else failure
        finally:
            llm.forget(ids)
            if not is_complete:
                await llm.abort(ids)

    async def _drain(self, request: EngineRequest) -> None:
        async for _ in self.generate(request):
            pass

    async def reset_prefix_cache(self) -> bool:
        llm, _ = self._running()
        return bool(await llm.reset_prefix_cache())

    def num_unfinished(self) -> int:
        return 0 if self._llm is None else int(self._llm.get_num_unfinished_requests())

    def kv_usage(self) -> float:
        return self._steps.kv_usage if self.num_unfinished() else 0.0

    def transfer_counts(self) -> dict[str, int]:
        return self._transfers.counts()

    def work(self) -> EngineWork:
        done, moved = self._prefills, self._transfers.counts()
        return EngineWork(
            done.prefills,
            done.tokens,
            done.ms,
            loads=moved.get("loads", 0),
            loaded_blocks=moved.get("loaded_blocks", 0),
            load_ms=moved.get("load_us", 0) / 1000,
        )

    async def check_health(self) -> None:
        llm, _ = self._running()
        timeout_s = self._model.health_check_timeout_s
        if llm.errored:
            raise EngineDead("the engine died")
        if self.num_unfinished() == 0:
            await self._ping(llm, timeout_s)
        elif self._steps.idle_s() > timeout_s:
            raise EngineDead(f"the engine has made no step for {timeout_s:g} s")

    async def _ping(self, llm: CountingLLM, timeout_s: float) -> None:
        """An idle engine takes no steps; a call to its process shows whether that still lives."""
        try:
            await asyncio.wait_for(llm.is_sleeping(), timeout_s)
        except TimeoutError as error:
            raise EngineDead(f"the engine has not answered for {timeout_s:g} s") from error
        except EngineDeadError as error:
            raise EngineDead("the engine died") from error

    async def stop(self) -> None:
        self._is_stopped = True
        llm, self._llm, self._layer = self._llm, None, None
        if llm is not None:
            await _shut_down(llm)
        if self._sockets is not None:
            self._sockets.close()
            self._sockets = None

    def _running(self) -> tuple[CountingLLM, OpenAiLayer]:
        if self._llm is None or self._layer is None:
            raise EngineDead("the engine is not running")
        return self._llm, self._layer


async def _shut_down(llm: CountingLLM) -> None:
    """Requests in flight fail at once; the reader of outputs stops before there are none."""
    llm.output_processor.propagate_error(EngineDeadError())
    if llm.output_handler is not None:
        llm.output_handler.cancel()
    await asyncio.to_thread(llm.shutdown, STOP_TIMEOUT_S)


def _translated(llm: CountingLLM, failure: Exception, request_id: str) -> WarmpathError:
    """A dead engine explains every failure; vLLM's own errors may hide it."""
    return EngineDead("the engine died") if llm.errored else translated(failure, request_id)


def _cancels() -> int:
    """How often the running task was asked to stop."""
    task = asyncio.current_task()
    return task.cancelling() if task is not None else 0
