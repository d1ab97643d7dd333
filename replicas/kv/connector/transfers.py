"""The worker's half: copies objects between the engine's pool and a store, off the engine's path.

No call here raises towards the engine: what cannot be loaded is a miss that the engine computes,
what cannot be saved is a miss of a later request.
"""

import logging
import queue
import threading
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

from replicas.kv.connector.buffers import Buffers
from replicas.kv.connector.messages import LoadJob, Piece, SaveObject, StepReport
from replicas.kv.connector.moves import Moves
from replicas.kv.connector.pool import BlockPool, Bytes, Moment
from replicas.kv.store.objects import ObjectKey, object_bytes, payload, seal
from replicas.kv.store.origins import Origin
from router.core.transfer import Keeping

logger = logging.getLogger(__name__)

MAX_BATCH_OBJECTS = 16
SPARE_BYTES = 64 * 2**20
"""Host memory that is kept for the next saves."""
STOP_TIMEOUT_S = 5.0
"""How long a stop waits for the saver to put down what it has in hand."""


@dataclass(frozen=True, slots=True)
class SealedObject:
    """An object and what the store is to know of it: see `SaveObject`."""

    key: bytes
    hashes: bytes
    keeping: Keeping
    blocks: int
    data: Bytes
    origin: Origin | None = None


@dataclass(frozen=True, slots=True)
class Outgoing:
    """An object on its way, whose bytes are there at a moment."""

    item: SealedObject
    filled: Moment


class ObjectStore(Protocol):
    """Some store, from a thread. May raise anything; blocks until its own deadline."""

    def offer(self, objects: Sequence[SealedObject]) -> list[bool]:
        """Which of them it has not. Those that it has are used once more, without their bytes."""
        ...

    def put(self, objects: Sequence[SealedObject]) -> None:
        """Returns once the store has them; their bytes are the caller's again then."""
        ...

    def fetch(self, pieces: Sequence[Piece], timeout_s: float) -> list[Bytes | None]:
        """In the order of `pieces`; None for what is not there. Together within `timeout_s`."""
        ...

    def discard(self, keys: Sequence[bytes]) -> None:
        """These turned out to be unusable."""
        ...


class Transfers:
    """One worker's. `held_bytes` bounds what waits in host memory to be saved; beyond it saves are
    dropped. `counts` says what happened, by cause, since the start."""

    def __init__(
        self, pool: BlockPool, store: ObjectStore, *, held_bytes: int, load_timeout_s: float
    ) -> None:
        self.counts: Counter[str] = Counter()
        self._pool = pool
        self._store = store
        self._held_bytes = held_bytes
        self._load_timeout_s = load_timeout_s
        self._lock = threading.Lock()
        self._waiting_bytes = 0
        self._buffers = Buffers(pool.new_buffer, min(held_bytes, SPARE_BYTES))
        self._report = StepReport()
        self._outbox: queue.SimpleQueue[Outgoing | None] = queue.SimpleQueue()
        self._loading: dict[str, Future[list[int]]] = {}
        self._loaders = ThreadPoolExecutor(2, thread_name_prefix="kv-load")
        self._moves = Moves(pool, self._count, store.discard)
        self._saver = threading.Thread(target=self._save_all, name="kv-save", daemon=True)
        self._saver.start()

    def save(self, orders: Sequence[SaveObject]) -> None:
        """Begins to copy the blocks out, of which the engine may then do anything; the rest happens
        later."""
        for order in orders:
            blocks = len(order.block_ids)
            size_bytes = object_bytes(blocks, self._pool.block_bytes)
            if not self._reserve(size_bytes):
                self._report_saves([order.key], is_saved=False)
                self._count("save_dropped")
                continue
            data = self._buffers.take(size_bytes)
            filled = self._pool.read(order.block_ids, payload(data))
            item = SealedObject(order.key, order.hashes, order.keeping, blocks, data, order.origin)
            self._outbox.put(Outgoing(item, filled))

    def load(self, job: LoadJob) -> None:
        """Begins; `finished` tells of the end, whatever it is: a request that were never told of
        would wait for ever."""
        try:
            self._loading[job.request_id] = self._loaders.submit(
                self._load, job, self._pool.moment()
            )
        except RuntimeError:
            lost = [block for piece in job.pieces for block in piece.block_ids]
            self._report_failure(job, lost)
            refused: Future[list[int]] = Future()
            refused.set_result(lost)
            self._loading[job.request_id] = refused

    def finished(self) -> tuple[set[str], set[int]]:
        """Requests whose loads are over, and the ids of blocks that they did not get."""
        done = {request_id for request_id, load in self._loading.items() if load.done()}
        lost = {block for request_id in done for block in self._loading.pop(request_id).result()}
        return done, lost

    def report(self) -> StepReport:
        """What happened since the last call."""
        with self._lock:
            report, self._report = self._report, StepReport()
        return report

    def close(self) -> None:
        self._outbox.put(None)
        self._loaders.shutdown(wait=False, cancel_futures=True)
        self._moves.close()
        self._saver.join(STOP_TIMEOUT_S)

    def _load(self, job: LoadJob, after: Moment) -> list[int]:
        """The ids of the blocks that were not loaded: from the first piece that fails on, all."""
        began = time.monotonic()
        lost = [block for piece in job.pieces for block in piece.block_ids]
        try:
            found = self._store.fetch(job.pieces, self._load_timeout_s)
            moved = self._moves.run(job.pieces, found, after)
            for piece, is_there in zip(job.pieces, moved, strict=True):
                if not is_there:
                    break
                del lost[: len(piece.block_ids)]
        except Exception:
            logger.exception("a load failed; the engine computes instead")
            self._count("load_failed")
        if lost:
            self._report_failure(job, lost)
        self._count("loads")
        self._count("loaded_blocks", sum(len(p.block_ids) for p in job.pieces) - len(lost))
        self._count("load_us", int((time.monotonic() - began) * 1e6))
        return lost

    def _save_all(self) -> None:
        while (batch := self._next_batch()) is not None:
            keys = [outgoing.item.key for outgoing in batch]
            try:
                for outgoing in batch:
                    outgoing.filled.synchronize()
                self._save_batch([outgoing.item for outgoing in batch])
                for outgoing in batch:
                    self._buffers.give(outgoing.item.data)
                self._report_saves(keys, is_saved=True)
            except Exception:
                logger.exception("a save failed; what it held is lost to later requests")
                self._report_saves(keys, is_saved=False)
                self._count("save_failed", len(keys))
            finally:
                self._release(sum(outgoing.item.data.nbytes for outgoing in batch))

    def _save_batch(self, batch: Sequence[SealedObject]) -> None:
        began = time.monotonic()
        wanted = self._store.offer(batch)
        fresh = [item for item, is_wanted in zip(batch, wanted, strict=True) if is_wanted]
        for item in fresh:
            seal(item.data, ObjectKey.unpack(item.key), item.blocks, self._pool.form)
        if fresh:
            self._store.put(fresh)
        self._count("saved_objects", len(fresh))
        self._count("saved_bytes", sum(item.data.nbytes for item in fresh))
        self._count("save_us", int((time.monotonic() - began) * 1e6))

    def _next_batch(self) -> list[Outgoing] | None:
        """Waits for one and takes what else is there; None at the end."""
        first = self._outbox.get()
        batch = [] if first is None else [first]
        while batch and len(batch) < MAX_BATCH_OBJECTS:
            try:
                outgoing = self._outbox.get_nowait()
            except queue.Empty:
                break
            if outgoing is None:
                self._outbox.put(None)
                break
            batch.append(outgoing)
        return batch or None

    def _reserve(self, size_bytes: int) -> bool:
        with self._lock:
            if self._waiting_bytes + size_bytes > self._held_bytes:
                return False
            self._waiting_bytes += size_bytes
            return True

    def _release(self, size_bytes: int) -> None:
        with self._lock:
            self._waiting_bytes -= size_bytes

    def _report_saves(self, keys: Sequence[bytes], *, is_saved: bool) -> None:
        with self._lock:
            (self._report.saved if is_saved else self._report.unsaved).extend(keys)

    def _report_failure(self, job: LoadJob, lost: Sequence[int]) -> None:
        gone = set(lost)
        with self._lock:
            self._report.failed_loads[job.request_id] = len(gone)
            self._report.unusable += [p.key for p in job.pieces if gone.intersection(p.block_ids)]

    def _count(self, cause: str, count: int = 1) -> None:
        with self._lock:
            self.counts[cause] += count
