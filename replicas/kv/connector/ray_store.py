"""KV stores from an engine's process, which is no Ray worker: it joins the cluster as a driver.

Every call ends by its deadline, joining the cluster included, and may raise Ray's errors;
`Transfers` takes each as a miss. The engine starts without Ray being there.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import ray
from ray.actor import ActorHandle

from replicas.kv.connector.bounded_calls import BoundedCalls
from replicas.kv.connector.messages import Piece
from replicas.kv.connector.pool import Bytes
from replicas.kv.connector.settings import StoreAddress
from replicas.kv.connector.transfers import SealedObject
from replicas.kv.store.contents import StoredObject
from replicas.kv.store.wire import pack_objects, pack_origins
from router.core.transfer import Keeping

logger = logging.getLogger(__name__)

CALL_LIMIT_S = 10.0
PUT_LIMIT_S = 60.0


class RayStores:
    """Saves to the node's own store; loads from whichever has it. Of one rank."""

    def __init__(self, address: StoreAddress, rank: int = 0) -> None:
        self._address = address
        self._rank = rank
        self._calls = BoundedCalls()
        self._lock = threading.Lock()
        self._actors: dict[str, ActorHandle] = {}

    def prepare(self) -> None:
        """Begins to join the cluster, so that the first load need not."""
        threading.Thread(target=self._join_early, name="kv-join", daemon=True).start()

    def offer(self, objects: Sequence[SealedObject]) -> list[bool]:
        heads = pack_objects([self._head(item) for item in objects])
        origins = pack_origins([item.origin for item in objects])
        wanted: list[bool] = self._ask(
            self._address.store_id, lambda store: store.offer.remote(heads, origins), CALL_LIMIT_S
        )
        return wanted

    def put(self, objects: Sequence[SealedObject]) -> None:
        """The store puts the bytes anew: what this process put would go with it."""
        heads = pack_objects([self._head(item) for item in objects])
        data = [item.data for item in objects]
        self._ask(self._address.store_id, lambda store: store.put.remote(heads, *data), PUT_LIMIT_S)

    def fetch(self, pieces: Sequence[Piece], timeout_s: float) -> list[Bytes | None]:
        deadline = time.monotonic() + timeout_s
        found: dict[bytes, Bytes | None] = {}
        for store_id in dict.fromkeys(piece.store_id for piece in pieces):
            keys = [piece.key for piece in pieces if piece.store_id == store_id]
            found |= zip(keys, self._fetch_calmly(store_id, keys, deadline), strict=True)
        return [found[piece.key] for piece in pieces]

    def discard(self, keys: Sequence[bytes]) -> None:
        """Of all stores that were asked; not waited for: whoever finds them next drops them too."""

        def discarded() -> None:
            for actor in list(self._actors.values()):
                actor.discard.remote(list(keys))

        self._calls.run(discarded, CALL_LIMIT_S)

    def _fetch_calmly(
        self, store_id: str, keys: Sequence[bytes], deadline: float
    ) -> list[Bytes | None]:
        """What a store that is gone had is missing; what others have is not."""
        try:
            return self._fetch_from(store_id, keys, deadline)
        except (ray.exceptions.RayError, TimeoutError, ValueError) as error:
            logger.warning("a KV store cannot be reached: %s", type(error).__name__)
            return [None] * len(keys)

    def _fetch_from(
        self, store_id: str, keys: Sequence[bytes], deadline: float
    ) -> list[Bytes | None]:
        located = self._ask(
            store_id, lambda store: store.locate.remote(list(keys)), _left(deadline)
        )
        known = [refs[0] for refs in located if refs]
        data = dict(zip(known, self._get(known, deadline), strict=True))
        return [data[refs[0]] if refs else None for refs in located]

    def _get(self, refs: Sequence[ray.ObjectRef], deadline: float) -> list[Bytes | None]:
        """All in one call; one by one where any of them is gone or late."""
        try:
            found: list[Bytes | None] = ray.get(list(refs), timeout=_left(deadline))
            return found
        except ray.exceptions.RayError as error:
            if len(refs) == 1:
                logger.warning("a stored object is gone: %s", type(error).__name__)
                return [None]
        return [data for ref in refs for data in self._get([ref], deadline)]

    def _ask(
        self, store_id: str, call: Callable[[ActorHandle], ray.ObjectRef], timeout_s: float
    ) -> Any:
        """Only what has to be found first may take Ray as long as it likes. Another actor may bear
        the name of one that died."""
        deadline = time.monotonic() + timeout_s
        known = self._actors.get(store_id)
        if known is not None:
            with suppress(ray.exceptions.ActorDiedError):
                return ray.get(call(known), timeout=timeout_s)

        def asked() -> Any:
            try:
                return ray.get(call(self._actor(store_id)), timeout=_left(deadline))
            except ray.exceptions.ActorDiedError:
                with self._lock:
                    self._actors.pop(store_id, None)
                return ray.get(call(self._actor(store_id)), timeout=_left(deadline))

        return self._calls.run(asked, timeout_s)

    def _actor(self, store_id: str) -> ActorHandle:
        """May take as long as Ray does: for a bounded call only."""
        with self._lock:
            self._join()
            actor = self._actors.get(store_id)
            if actor is None:
                actor = ray.get_actor(store_id, namespace=self._address.namespace)
                self._actors[store_id] = actor
            return actor

    def _join_early(self) -> None:
        try:
            with self._lock:
                self._join()
        except Exception as error:
            logger.warning("the cluster cannot be joined yet: %r", error)

    def _join(self) -> None:
        if not ray.is_initialized():
            ray.init(
                address=self._address.cluster,
                namespace=self._address.namespace,
                log_to_driver=False,
                logging_level=logging.ERROR,
            )

    def _head(self, item: SealedObject) -> StoredObject:
        return StoredObject(
            item.key,
            self._address.model,
            item.hashes,
            item.blocks,
            item.data.nbytes,
            is_for_reuse=item.keeping is Keeping.REUSE,
            rank=self._rank,
        )


def _left(deadline: float) -> float:
    return max(0.001, deadline - time.monotonic())
