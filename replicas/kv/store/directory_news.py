"""What a store tells the block indexes: one publisher for each model that it has objects of."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence

from replicas.kv.store.contents import Changes, StoredObject
from router.core.types import StoreId
from router.serve import store_wire
from router.serve.store_publisher import NewsConnection, StorePublisher

logger = logging.getLogger(__name__)

MAX_MODELS = 64


class DirectoryNews:
    """Belongs to one event loop. `objects` lists all that is stored, `connect` gives the way to a
    model's index. A model's index is told from `follow` on."""

    def __init__(
        self,
        store_id: StoreId,
        objects: Callable[[], Sequence[StoredObject]],
        connect: Callable[[str], NewsConnection],
    ) -> None:
        self._store_id = store_id
        self._objects = objects
        self._connect = connect
        self._publishers: dict[str, StorePublisher] = {}
        self._tasks: list[asyncio.Task[None]] = []

    def follow(self, model: str) -> None:
        """Begins to tell the model's index, if it does not yet. Idempotent."""
        if model in self._publishers or len(self._publishers) >= MAX_MODELS:
            return
        publisher = StorePublisher(
            self._connect(model), self._store_id, lambda: self._everything(model)
        )
        self._publishers[model] = publisher
        task = asyncio.create_task(publisher.run(), name=f"kv-news of {model}")
        task.add_done_callback(_log_failure)
        self._tasks.append(task)

    def note(self, changes: Changes) -> None:
        for model, publisher in self._publishers.items():
            added = _of_model(changes.added.values(), model)
            removed = _of_model(changes.removed.values(), model)
            if added or removed:
                publisher.note(added, removed)

    def counts(self) -> dict[str, int]:
        failed = sum(publisher.failed_calls for publisher in self._publishers.values())
        return {"models": len(self._publishers), "news_failed": failed}

    async def close(self) -> None:
        """Tells all indexes that nothing is stored here any more."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(publisher.close() for publisher in self._publishers.values()))

    def _everything(self, model: str) -> list[store_wire.StoredObject]:
        return _of_model(self._objects(), model)


def _of_model(objects: Iterable[StoredObject], model: str) -> list[store_wire.StoredObject]:
    return [
        store_wire.StoredObject(s.key, s.hashes, s.size_bytes)
        for s in objects
        if s.model == model and not s.rank
    ]


def _log_failure(task: "asyncio.Task[None]") -> None:
    if not task.cancelled() and task.exception() is not None:
        logger.error("a KV store tells an index no more", exc_info=task.exception())
