"""Our connector as vLLM loads it: its hooks, answered by `TransferPlanner` and `Transfers`.

vLLM makes one in the scheduler's process and one for each rank. An exception in any hook would end
the engine, so each is an edge: it logs, counts and answers as if there were no store.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

import msgspec
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
    KVConnectorWorkerMetadata,
)

from replicas.kv.connector.chains import RouterChain
from replicas.kv.connector.messages import (
    PARAMETER,
    StepOrders,
    StepReport,
    decode_request,
    lost_blocks_note,
)
from replicas.kv.connector.planner import Computed, TransferPlanner
from replicas.kv.connector.rank_worker import RankWorker
from replicas.kv.connector.ray_store import RayStores
from replicas.kv.connector.settings import ConnectorSettings
from replicas.kv.connector.transfers import ObjectStore, Transfers
from replicas.kv.connector.vllm_pool import namespace_of, pool_of, this_rank
from replicas.kv.connector.vllm_stats import GrowingCounts, TransferStats
from router.core.transfer import TransferRequest

logger = logging.getLogger(__name__)

_NOTHING_FINISHED: tuple[set[str] | None, set[str] | None] = (None, None)

P = ParamSpec("P")
R = TypeVar("R")


@dataclass
class Orders(KVConnectorMetadata):
    orders: StepOrders


@dataclass
class Reports(KVConnectorWorkerMetadata):
    """Of each rank that has something to say."""

    reports: list[StepReport]

    def aggregate(self, other: "Reports") -> "Reports":
        return Reports(self.reports + other.reports)


def _guarded(
    fallback: R,
) -> Callable[
    [Callable[Concatenate["WarmpathConnector", P], R]],
    Callable[Concatenate["WarmpathConnector", P], R],
]:
    """A hook that answers `fallback` where it fails."""

    def guard(
        hook: Callable[Concatenate["WarmpathConnector", P], R],
    ) -> Callable[Concatenate["WarmpathConnector", P], R]:
        @wraps(hook)
        def guarded(self: "WarmpathConnector", /, *args: P.args, **kwargs: P.kwargs) -> R:
            try:
                return hook(self, *args, **kwargs)
            except Exception:
                self.faults += 1
                logger.exception("the KV connector failed in %s", hook.__name__)
                return fallback

        return guarded

    return guard


class WarmpathConnector(KVConnectorBase_V1):
    """Best effort: nothing waits for a save, and a load that fails is computed."""

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        self.faults = 0
        extra = vllm_config.kv_transfer_config.kv_connector_extra_config
        settings = msgspec.convert(extra, ConnectorSettings)
        self._settings = settings
        self._block_size: int = vllm_config.cache_config.block_size
        namespace = namespace_of(vllm_config, kv_cache_config)
        ranks = vllm_config.parallel_config.world_size
        self._planner = TransferPlanner(namespace, settings.object_blocks, ranks)
        self._num_blocks: int = kv_cache_config.num_blocks
        self._worker = RankWorker()
        self._requests: dict[str, Any] = {}
        self._told = GrowingCounts()

    @property
    def requires_kv_delivery(self) -> bool:
        return False

    def get_kv_connector_stats(self) -> TransferStats | None:
        """Of both sides, each its own."""
        return self._told.grown(self._worker.counts() | {"faults": self.faults})

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> TransferStats:
        return TransferStats(data or {})

    # The scheduler's side.

    @_guarded(None)
    def on_new_request(self, request: Any) -> None:
        chain = RouterChain(self._block_size, request.cache_salt)
        self._planner.add(request.request_id, _transfer_request(request), chain)
        if self._planner.is_followed(request.request_id):
            self._requests[request.request_id] = request

    @_guarded((0, False))
    def get_num_new_matched_tokens(
        self, request: Any, num_computed_tokens: int
    ) -> tuple[int, bool]:
        if request.skip_reading_prefix_cache:
            return 0, False
        blocks = self._planner.match(
            request.request_id,
            request.block_hashes,
            num_computed_tokens // self._block_size,
            (request.num_tokens - 1) // self._block_size,
        )
        return blocks * self._block_size, blocks > 0

    @_guarded(None)
    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        count = num_external_tokens // self._block_size
        self._planner.place(request.request_id, count, blocks.get_block_ids()[0])

    def build_connector_meta(self, scheduler_output: Any) -> Orders:
        self._fill(scheduler_output)
        return Orders(self._planner.take())

    @_guarded(None)
    def _fill(self, scheduler_output: Any) -> None:
        blocks = scheduler_output.kv_connector_block_state
        now = time.monotonic()
        for request_id, scheduled in scheduler_output.num_scheduled_tokens.items():
            request = self._requests.get(request_id)
            if request is None:
                continue
            done = request.num_computed_tokens + scheduled
            full = min(done // self._block_size, len(request.block_hashes))
            ids = blocks.get_block_ids(request_id)
            if ids is not None:
                computed = Computed(full, request.block_hashes, ids[0], request.all_token_ids)
                self._planner.fill(request_id, computed, now)

    @_guarded(None)
    def update_connector_output(self, connector_output: Any) -> None:
        reports = connector_output.kv_connector_worker_meta
        for report in reports.reports if reports else ():
            self._planner.hear(report, time.monotonic())

    def request_finished(self, request: Any, block_ids: Any) -> tuple[bool, dict[str, Any] | None]:
        """vLLM has counted the blocks of a load that failed as cached; the answer says of them."""
        lost_blocks = self._planner.forget(request.request_id)
        self._requests.pop(request.request_id, None)
        return False, lost_blocks_note(lost_blocks) if lost_blocks else None

    def has_pending_push_work(self) -> bool:
        return self._planner.is_saving

    # The worker's side.

    @_guarded(None)
    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        rank = this_rank()
        pool = pool_of(self._vllm_config, kv_caches, self._num_blocks, rank)
        transfers = Transfers(
            pool,
            self.stores(rank),
            held_bytes=self._settings.held_bytes,
            load_timeout_s=self._settings.load_timeout_s,
        )
        self._worker.attach(transfers, rank)

    def stores(self, rank: int) -> ObjectStore:
        """Where a rank saves to and loads from."""
        stores = RayStores(self._settings.address, rank)
        stores.prepare()
        return stores

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        self._worker.load(self._orders().loads)

    @_guarded(None)
    def wait_for_save(self) -> None:
        self._worker.save(self._orders().saves)

    def wait_for_layer_load(self, layer_name: str) -> None:
        pass

    def save_kv_layer(self, *arguments: Any, **keywords: Any) -> None:
        pass

    @_guarded(_NOTHING_FINISHED)
    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        return None, self._worker.finished() or None

    def get_block_ids_with_load_errors(self) -> set[int]:
        return self._worker.take_lost()

    def build_connector_worker_meta(self) -> Reports | None:
        report = self._worker.report()
        return Reports([report]) if report else None

    def shutdown(self) -> None:
        self._worker.close()

    def _orders(self) -> StepOrders:
        metadata = self._get_connector_metadata()
        return metadata.orders if isinstance(metadata, Orders) else StepOrders()


def _transfer_request(request: Any) -> TransferRequest:
    """Media and adapters are in the engine's hash, but the router's would have to know them too."""
    parameters = request.kv_transfer_params or {}
    if PARAMETER not in parameters or request.mm_features or request.lora_request:
        return TransferRequest()
    return decode_request(parameters[PARAMETER])
