"""The scheduler's half: which stored blocks a request loads, and which of its own are saved. Pure.

It asks nobody: what is stored came with the request, in the router's decision. Every planned object
is held against the engine's own hash of its last block, so that a wrong plan loads nothing.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from msgspec.structs import replace

from replicas.kv.connector.chains import RouterChain
from replicas.kv.connector.messages import LoadJob, Piece, SaveObject, StepOrders, StepReport
from replicas.kv.store.objects import ObjectKey
from router.core.hashing import pack_hashes
from router.core.transfer import Keeping, StoredRun, TransferRequest

MAX_KNOWN_OBJECTS = 65_536
KNOWN_FOR_S = 30.0
"""An object seen in the store is not offered again so soon; afterwards it may have been evicted."""


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """`blocks` blocks of the chain from `first_block` on, out of `runs`."""

    first_block: int
    blocks: int
    runs: tuple[StoredRun, ...]


@dataclass(frozen=True, slots=True)
class Computed:
    """The first `blocks` full blocks of a request are in the engine's pool at `block_ids`, under
    the engine's `hashes`; they hold the first of `token_ids`."""

    blocks: int
    hashes: Sequence[bytes]
    block_ids: Sequence[int]
    token_ids: Sequence[int]


@dataclass(slots=True)
class Progress:
    """One request: what it may load, how many of its objects are saved or on their way, and how
    many blocks it was to get and did not."""

    transfer: TransferRequest
    chain: RouterChain
    plan: LoadPlan | None = None
    handled_objects: int = 0
    lost_blocks: int = 0

    def saved_blocks(self, computed_blocks: int) -> int:
        """How many of its first blocks are to be kept."""
        transfer = self.transfer
        if transfer.keeping is Keeping.REUSE:
            return min(computed_blocks, transfer.reuse_blocks)
        return computed_blocks if transfer.keeping is Keeping.CONTEXT else 0


class TransferPlanner:
    """Objects are of `object_blocks` blocks and begin at multiples of them in the chain; each of
    the engine's `ranks` saves its part of one.

    One progress for each request inside the engine; the rest is bounded by what the worker has in
    hand and by `MAX_KNOWN_OBJECTS`.
    """

    def __init__(self, namespace: bytes, object_blocks: int, ranks: int = 1) -> None:
        self._namespace = namespace
        self._object_blocks = object_blocks
        self._ranks = ranks
        self._requests: dict[str, Progress] = {}
        self._loads: list[LoadJob] = []
        self._saves: list[SaveObject] = []
        self._open_saves: dict[bytes, int] = {}
        self._incomplete: set[bytes] = set()
        self._known: OrderedDict[bytes, float] = OrderedDict()

    @property
    def is_saving(self) -> bool:
        """Whether a rank has yet to say what became of a save: an engine that stops stepping would
        not hear of it."""
        return bool(self._open_saves)

    def add(self, request_id: str, transfer: TransferRequest, chain: RouterChain) -> None:
        if transfer.loads or transfer.keeping is not Keeping.NOTHING:
            self._requests[request_id] = Progress(transfer, chain)

    def is_followed(self, request_id: str) -> bool:
        return request_id in self._requests

    def forget(self, request_id: str) -> int:
        """Returns how many blocks it was to get from a store and did not."""
        progress = self._requests.pop(request_id, None)
        return 0 if progress is None else progress.lost_blocks

    def match(
        self, request_id: str, hashes: Sequence[bytes], held_blocks: int, limit_blocks: int
    ) -> int:
        """How many blocks can be loaded after the `held_blocks` that the engine has already.

        `hashes` are the engine's, of the request's full blocks; none past the `limit_blocks`-th is
        loaded. Replaces the plan of an earlier call and changes nothing else.
        """
        progress = self._requests.get(request_id)
        if progress is None:
            return 0
        runs = tuple(self._connected(progress.transfer.loads, hashes, held_blocks))
        end = min(runs[-1].first_block + runs[-1].blocks, limit_blocks) if runs else 0
        blocks = max(0, end - held_blocks)
        progress.plan = LoadPlan(held_blocks, blocks, runs) if blocks else None
        return blocks

    def place(self, request_id: str, blocks: int, block_ids: Sequence[int]) -> None:
        """The engine made room for `blocks` planned blocks; `block_ids` are all of the request."""
        progress = self._requests.get(request_id)
        if progress is None or progress.plan is None or not blocks:
            return
        plan, progress.plan = progress.plan, None
        pieces = _pieces(plan, plan.first_block + min(blocks, plan.blocks), block_ids)
        self._loads.append(LoadJob(request_id, tuple(pieces)))
        progress.handled_objects = (plan.first_block + plan.blocks) // self._object_blocks

    def fill(
        self,
        request_id: str,
        computed: Computed,
        now: float,
    ) -> None:
        """What of the request is computed after this step."""
        progress = self._requests.get(request_id)
        if progress is None:
            return
        whole = progress.saved_blocks(computed.blocks) // self._object_blocks
        for index in range(progress.handled_objects, whole):
            self._save(progress, computed, index * self._object_blocks, now)
        progress.handled_objects = max(progress.handled_objects, whole)

    def take(self) -> StepOrders:
        """What has come together since the last call."""
        orders = StepOrders(tuple(self._loads), tuple(self._saves))
        self._loads, self._saves = [], []
        return orders

    def hear(self, report: StepReport, now: float) -> None:
        """What became of earlier orders at one rank. What could not be used is saved anew at the
        next chance, and a request whose load failed computes: it would otherwise plan the same load
        for ever."""
        self._incomplete.update(self._open_saves.keys() & set(report.unsaved))
        for key in (*report.saved, *report.unsaved):
            self._settle(key, now)
        for key in report.unusable:
            self._known.pop(key, None)
        for request_id, lost_blocks in report.failed_loads.items():
            progress = self._requests.get(request_id)
            if progress is not None:
                progress.transfer = replace(progress.transfer, loads=())
                progress.handled_objects = 0
                progress.lost_blocks = max(progress.lost_blocks, lost_blocks)
        while len(self._known) > MAX_KNOWN_OBJECTS:
            self._known.popitem(last=False)

    def _save(self, progress: Progress, computed: Computed, first: int, now: float) -> None:
        end = first + self._object_blocks
        key = ObjectKey(self._namespace, computed.hashes[end - 1]).pack()
        if not self._is_wanted(key, now):
            return
        chain = progress.chain.hashes(computed.token_ids, end)[first:end]
        ids = tuple(computed.block_ids[first:end])
        packed = pack_hashes(np.array(chain, np.uint64))
        origin = progress.chain.origin(computed.token_ids, first, end)
        self._saves.append(SaveObject(key, packed, ids, progress.transfer.keeping, origin))
        self._open_saves[key] = self._ranks

    def _settle(self, key: bytes, now: float) -> None:
        """One rank more is done with its part; the object is there once all have theirs."""
        open_ranks = self._open_saves.pop(key, 0) - 1
        if open_ranks > 0:
            self._open_saves[key] = open_ranks
        elif key in self._incomplete:
            self._incomplete.discard(key)
        elif open_ranks == 0:
            self._known[key] = now
            self._known.move_to_end(key)

    def _is_wanted(self, key: bytes, now: float) -> bool:
        known_at = self._known.get(key)
        is_known = known_at is not None and now < known_at + KNOWN_FOR_S
        return not is_known and key not in self._open_saves

    def _connected(
        self, runs: Iterable[StoredRun], hashes: Sequence[bytes], held_blocks: int
    ) -> Iterable[StoredRun]:
        """Those that go on from what the engine holds, without a gap, and are really this prompt's.

        Runs come in the order of the chain.
        """
        reached = held_blocks
        for run in runs:
            end = run.first_block + run.blocks
            if end <= reached:
                continue
            if run.first_block > reached or not self._is_own(run, hashes):
                return
            yield run
            reached = end

    def _is_own(self, run: StoredRun, hashes: Sequence[bytes]) -> bool:
        end = run.first_block + run.blocks
        if run.blocks != self._object_blocks or end > len(hashes):
            return False
        return run.key == ObjectKey(self._namespace, hashes[end - 1]).pack()


def _pieces(plan: LoadPlan, end: int, block_ids: Sequence[int]) -> Iterable[Piece]:
    for run in plan.runs:
        first = max(run.first_block, plan.first_block)
        ids = tuple(block_ids[first : min(run.first_block + run.blocks, end)])
        if ids:
            yield Piece(run.key, run.store_id, run.blocks, first - run.first_block, first, ids)
