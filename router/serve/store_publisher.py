"""A KV store's side of one model's block index: tells what it has, what changes, and all anew.

Whatever happens to the index, the store serves on; the index is told everything once it is back.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from router.core.errors import IndexUnavailable
from router.core.types import StoreId
from router.serve.store_wire import StoredObject, StoreNews
from router.serve.wire import HASH_BYTES, MAX_BATCH_BLOCKS, Receipt, Verdict, encode

_log = logging.getLogger(__name__)


class NewsConnection(Protocol):
    """The way to the index for stores. Both raise `IndexUnavailable`."""

    async def report_stored(self, news: bytes) -> Receipt: ...

    async def forget_store(self, store_id: StoreId) -> Receipt: ...


@dataclass(frozen=True, slots=True)
class NewsSettings:
    """News leave `delay_s` after the first of them; empty ones renew the store's lease."""

    delay_s: float = 0.05
    renew_interval_s: float = 2.0
    retry_after_s: float = 0.25
    call_limit_s: float = 5.0


class StorePublisher:
    """Of one store and one model; owned by one event loop. `everything` lists what is stored.

    Holds at most one note for each object that is or was stored.
    """

    def __init__(
        self,
        connection: NewsConnection,
        store_id: StoreId,
        everything: Callable[[], Iterable[StoredObject]],
        settings: NewsSettings | None = None,
    ) -> None:
        self.failed_calls = 0
        self._connection = connection
        self._store_id = store_id
        self._everything = everything
        self._settings = settings or NewsSettings()
        self._added: dict[bytes, StoredObject] = {}
        self._removed: dict[bytes, StoredObject] = {}
        self._begins = True
        self._unsent: StoreNews | None = None
        self._incarnation: int | None = None
        self._changed = asyncio.Event()

    def note(self, added: Iterable[StoredObject], removed: Iterable[StoredObject]) -> None:
        """What came and what left, each in net."""
        for stored in removed:
            if self._added.pop(stored.key, None) is None:
                self._removed[stored.key] = stored
        for stored in added:
            if self._removed.pop(stored.key, None) is None:
                self._added[stored.key] = stored
        self._changed.set()

    async def run(self) -> None:
        """Runs until it is cancelled; no trouble of the index ends it."""
        while True:
            try:
                await self._step()
            except (IndexUnavailable, TimeoutError) as error:
                self.failed_calls += 1
                _log.debug("the block index did not take a store's news: %s", error)
                await asyncio.sleep(self._settings.retry_after_s)

    async def close(self) -> None:
        """Says that nothing is stored here any more. `run` is to be cancelled first."""
        with suppress(IndexUnavailable, TimeoutError):
            async with asyncio.timeout(self._settings.call_limit_s):
                await self._connection.forget_store(self._store_id)

    async def _step(self) -> None:
        """News that failed go again: hearing them twice does no harm."""
        if self._unsent is None:
            await self._wait()
            self._unsent = self._next_news()
        async with asyncio.timeout(self._settings.call_limit_s):
            receipt = await self._connection.report_stored(encode(self._unsent))
        begun, self._unsent = self._unsent.begins, None
        is_known = receipt.incarnation == self._incarnation or begun
        self._incarnation = receipt.incarnation
        self._begins = not is_known or receipt.verdict != Verdict.ACCEPTED

    async def _wait(self) -> None:
        if self._begins or self._added or self._removed:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(self._settings.renew_interval_s):
                await self._changed.wait()
            await asyncio.sleep(self._settings.delay_s)
        self._changed.clear()

    def _next_news(self) -> StoreNews:
        begins, self._begins = self._begins, False
        if begins:
            self._removed.clear()
            self._added = {stored.key: stored for stored in self._everything()}
        removed = _taken(self._removed, MAX_BATCH_BLOCKS)
        left_blocks = MAX_BATCH_BLOCKS - sum(map(_blocks, removed))
        return StoreNews(self._store_id, _taken(self._added, left_blocks), removed, begins)


def _taken(waiting: dict[bytes, StoredObject], max_blocks: int) -> list[StoredObject]:
    """The first of them, as many as fit. O(what is taken)."""
    taken: list[StoredObject] = []
    for stored in waiting.values():
        max_blocks -= _blocks(stored)
        if max_blocks < 0:
            break
        taken.append(stored)
    for stored in taken:
        del waiting[stored.key]
    return taken


def _blocks(stored: StoredObject) -> int:
    return len(stored.hashes) // HASH_BYTES
