"""A replica's side of the block index: registers, reports changes in order, renews, resynchronises.

Whatever happens to the index, the replica serves on; the index is told everything once it is back.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Protocol

from router.core.errors import IndexUnavailable
from router.core.events import EventBatch, SnapshotChunk
from router.core.store_access import LoadLine
from router.core.types import Incarnation, ReplicaId, StoreId
from router.serve.wire import MAX_BATCH_BLOCKS, Receipt, Registration, Verdict, encode

_log = logging.getLogger(__name__)

_FULL_BATCH_BLOCKS = MAX_BATCH_BLOCKS // 2
"""From here on there may be changes that did not fit."""


class ChangeSource(Protocol):
    """What the replica's mirror offers; batches are numbered without holes."""

    def next_batch(self, max_blocks: int) -> EventBatch:
        """The net changes since the batch before, at most so many blocks; may be empty.

        What does not fit stays for the next.
        """
        ...

    def snapshot(self, chunk_blocks: int) -> Sequence[SnapshotChunk]:
        """All that is held, in at least one chunk; the next batch goes on from there."""
        ...


class EventConnection(Protocol):
    """The way to the index for replicas. All raise `IndexUnavailable`."""

    async def register(self, registration: bytes) -> Receipt: ...

    async def apply(self, events: bytes) -> Receipt: ...

    async def snapshot(self, part: bytes) -> Receipt: ...

    async def forget(self, registration: bytes) -> Receipt: ...


@dataclass(frozen=True, slots=True)
class ReplicaTraits:
    """What a replica says of itself besides its blocks; see `Registration`."""

    cache_tokens: int | None = None
    store_id: StoreId | None = None
    load_line: LoadLine | None = None


@dataclass(frozen=True, slots=True)
class PublisherSettings:
    """A batch leaves `batch_delay_s` after its first change; an empty one renews the lease."""

    batch_delay_s: float = 0.02
    renew_interval_s: float = 1.0
    retry_after_s: float = 0.1
    call_limit_s: float = 5.0


@dataclass(slots=True)
class PublisherCounters:
    batches: int = 0
    blocks: int = 0
    snapshots: int = 0
    registrations: int = 0
    reincarnations: int = 0
    failed_calls: int = 0


class _Stage(Enum):
    """What the index has to hear next."""

    REGISTRATION = auto()
    SNAPSHOT = auto()
    CHANGES = auto()


class IndexPublisher:
    """One life of one replica towards the index; owned by one event loop.

    `new_incarnation` gives greater numbers each time: another life begins where the index has
    ended this one for its silence. `traits` are asked for after every batch, and told anew where
    they have changed.
    """

    def __init__(
        self,
        connection: EventConnection,
        source: ChangeSource,
        replica_id: ReplicaId,
        new_incarnation: Callable[[], Incarnation],
        settings: PublisherSettings | None = None,
        traits: Callable[[], ReplicaTraits] = ReplicaTraits,
    ) -> None:
        self.counters = PublisherCounters()
        self._connection = connection
        self._source = source
        self._replica_id = replica_id
        self._new_incarnation = new_incarnation
        self._incarnation = new_incarnation()
        self._settings = settings or PublisherSettings()
        self._traits = traits
        self._told: ReplicaTraits | None = None
        self._stage = _Stage.REGISTRATION
        self._unsent: EventBatch | None = None
        self._index_incarnation: int | None = None
        self._changed = asyncio.Event()
        self._changed_at_s: float | None = None
        self._sent_change_at_s: float | None = None

    @property
    def lag_s(self) -> float:
        """Age of the oldest change that the index has not confirmed; 0 where it knows all."""
        oldest_s = self._sent_change_at_s or self._changed_at_s
        return 0.0 if oldest_s is None else time.monotonic() - oldest_s

    def notify(self) -> None:
        """The source has changes. Cheap; for every engine event."""
        self._changed.set()
        self._changed_at_s = self._changed_at_s or time.monotonic()

    async def run(self) -> None:
        """Runs until it is cancelled; no trouble of the index ends it."""
        while True:
            try:
                await self._step()
            except (IndexUnavailable, TimeoutError) as error:
                self.counters.failed_calls += 1
                _log.debug("the block index did not take a replica's message: %s", error)
                await asyncio.sleep(self._settings.retry_after_s)

    async def close(self) -> None:
        """Says good-bye, so that the replica is no candidate from here on; waits a moment at most.

        `run` is to be cancelled first.
        """
        with suppress(IndexUnavailable, TimeoutError):
            async with asyncio.timeout(self._settings.call_limit_s):
                await self._connection.forget(self._registration(ReplicaTraits()))

    async def _step(self) -> None:
        match self._stage:
            case _Stage.REGISTRATION:
                await self._register()
            case _Stage.SNAPSHOT:
                await self._send_snapshot()
            case _Stage.CHANGES:
                await self._send_changes()
                if self._stage is _Stage.CHANGES and self._traits() != self._told:
                    self._heed(await self._introduce())

    async def _introduce(self) -> Receipt:
        traits = self._traits()
        receipt = await self._call(self._connection.register, self._registration(traits))
        self._told = traits
        return receipt

    async def _register(self) -> None:
        receipt = await self._introduce()
        self._index_incarnation = receipt.incarnation
        self.counters.registrations += 1
        if receipt.verdict == Verdict.ACCEPTED:
            self._stage = _Stage.SNAPSHOT
        elif receipt.verdict == Verdict.REINCARNATE:
            self._reincarnate()
        else:
            raise IndexUnavailable("the block index has no slot left for this replica")

    async def _send_snapshot(self) -> None:
        """Changes that wait are in the snapshot, those of an unsent batch too."""
        self._unsent = None
        self._begin_to_send()
        self.counters.snapshots += 1
        self._stage = _Stage.CHANGES
        for chunk in self._source.snapshot(MAX_BATCH_BLOCKS):
            part = replace(chunk, incarnation=self._incarnation).pack()
            self._heed(await self._call(self._connection.snapshot, part))
            if self._stage is not _Stage.CHANGES:
                return
        self._sent_change_at_s = None

    async def _send_changes(self) -> None:
        """A batch that failed goes again: its number tells the index whether it had it."""
        if self._unsent is None:
            await self._wait()
            self._begin_to_send()
            self._unsent = self._source.next_batch(MAX_BATCH_BLOCKS)
        batch = replace(self._unsent, incarnation=self._incarnation)
        receipt = await self._call(self._connection.apply, batch.pack())
        self._unsent = self._sent_change_at_s = None
        self.counters.batches += 1
        self.counters.blocks += batch.blocks
        if batch.blocks >= _FULL_BATCH_BLOCKS:
            self.notify()
        self._heed(receipt)

    def _begin_to_send(self) -> None:
        """What has changed until here is on its way, and not confirmed before the answer."""
        self._sent_change_at_s = self._sent_change_at_s or self._changed_at_s
        self._changed_at_s = None

    async def _wait(self) -> None:
        """Until something changed and a moment for more to join, or a renewal is due."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._settings.renew_interval_s):
                await self._changed.wait()
            await asyncio.sleep(self._settings.batch_delay_s)
        self._changed.clear()

    def _heed(self, receipt: Receipt) -> None:
        if receipt.incarnation != self._index_incarnation or receipt.verdict == Verdict.REGISTER:
            self._stage = _Stage.REGISTRATION
        elif receipt.verdict == Verdict.REINCARNATE:
            self._reincarnate()
        elif receipt.verdict == Verdict.WANTS_SNAPSHOT:
            self._stage = _Stage.SNAPSHOT

    def _reincarnate(self) -> None:
        self._incarnation = self._new_incarnation()
        self._stage = _Stage.REGISTRATION
        self.counters.reincarnations += 1

    def _registration(self, traits: ReplicaTraits) -> bytes:
        return encode(
            Registration(
                self._replica_id,
                self._incarnation,
                traits.cache_tokens,
                traits.store_id,
                traits.load_line,
            )
        )

    async def _call(self, call: Callable[[bytes], Awaitable[Receipt]], message: bytes) -> Receipt:
        async with asyncio.timeout(self._settings.call_limit_s):
            return await call(message)
