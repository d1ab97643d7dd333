"""A block index in this process, as the publisher reaches it: the real desk over the real index."""

import time
from random import Random

import numpy as np

from replicas.engines.protocol import EngineRequest, Routing
from router.core.errors import IndexUnavailable
from router.core.events import EventBatch, SnapshotChunk
from router.core.hashing import NO_EXTRA_KEYS, hash_blocks, salt
from router.core.index import BlockIndex
from router.core.ledger import LoadLedger
from router.core.types import BookingId, Incarnation, ReplicaId
from router.selector import Selector
from router.serve.event_desk import EventDesk
from router.serve.leases import ReplicaLeases
from router.serve.wire import Receipt, decode_registration


class LocalIndex:
    """`is_down` refuses every call; `restart` forgets everything."""

    def __init__(self) -> None:
        self.is_down = False
        self._lives = 0
        self.restart()

    def restart(self) -> None:
        self._lives += 1
        self.index = BlockIndex(100_000, 4)
        leases = ReplicaLeases(4, stale_after_s=1e9, forget_after_s=1e9)
        ledger = LoadLedger(4)
        selector = Selector(self.index, ledger, leases, Random(1))
        life = Incarnation(self._lives)
        self._desk = EventDesk(self.index, selector, leases, ledger, life)

    def blocks(self, replica_id: ReplicaId) -> set[int]:
        """All that the index believes this replica's engine to hold."""
        if replica_id not in self.index.blocks_by_replica():
            return set()
        runs = [run for part in self.index.snapshot(replica_id) for run in part.stored]
        return set(np.concatenate([run.hashes for run in runs]).tolist()) if runs else set()

    def route(self, request: EngineRequest, replica_id: ReplicaId, block_size: int) -> Routing:
        """What a router that asks now would say: one engine request a prompt."""
        known = self.blocks(replica_id)
        keys = NO_EXTRA_KEYS if request.cache_salt is None else salt(request.cache_salt)
        overlaps, forecasts = [], []
        for prompt in request.prompts:
            hashes = hash_blocks(prompt, block_size, keys).tolist()
            overlaps.append([*(h in known for h in hashes), False].index(False))
            forecasts.append(min(overlaps[-1], (len(prompt) // 4 - 1) // block_size))
        seq = self.index.applied_seq(replica_id)
        return Routing(
            BookingId(1), (replica_id,), tuple(overlaps), tuple(forecasts), seq, time.time()
        )

    async def register(self, registration: bytes) -> Receipt:
        self._check()
        return self._desk.register(decode_registration(registration), time.monotonic())

    async def apply(self, events: bytes) -> Receipt:
        self._check()
        return self._desk.apply(EventBatch.unpack(events), time.monotonic())

    async def snapshot(self, part: bytes) -> Receipt:
        self._check()
        return self._desk.snapshot(SnapshotChunk.unpack(part), time.monotonic())

    async def forget(self, registration: bytes) -> Receipt:
        self._check()
        return self._desk.forget(decode_registration(registration))

    def _check(self) -> None:
        if self.is_down:
            raise IndexUnavailable("down")
