"""Stored objects into an engine's pool: proven while they are copied, by two threads."""

import logging
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait

from replicas.kv.connector.messages import Piece
from replicas.kv.connector.pool import BlockPool, Bytes, Moment
from replicas.kv.store.objects import ObjectKey, Proof, UnusableObject, payload

logger = logging.getLogger(__name__)


class Moves:
    """Of one worker. `count` is told `load_missing` and `load_damaged`, `discard` the keys of what
    is damaged."""

    def __init__(
        self,
        pool: BlockPool,
        count: Callable[[str], None],
        discard: Callable[[Sequence[bytes]], None],
    ) -> None:
        self._pool = pool
        self._count = count
        self._discard = discard
        self._second = ThreadPoolExecutor(1, thread_name_prefix="kv-move")

    def run(
        self, pieces: Sequence[Piece], found: Sequence[Bytes | None], after: Moment
    ) -> list[bool]:
        """Of each piece whether it is in the pool, whose blocks are free for it from `after` on. No
        block is written any more afterwards, however it ends: the engine computes those that it did
        not get in the same places.

        Two threads share the work: one alone does not use all of the memory's bandwidth.
        """
        outcomes = [False] * len(pieces)
        todo = deque(enumerate(zip(pieces, found, strict=True)))
        second = self._second.submit(self._work, todo, outcomes, after)
        try:
            self._work(todo, outcomes, after)
        finally:
            if not second.cancel():
                wait([second])
        if not second.cancelled():
            second.result()
        return outcomes

    def close(self) -> None:
        """What is begun goes on to its end."""
        self._second.shutdown(wait=False)

    def _work(
        self,
        todo: deque[tuple[int, tuple[Piece, Bytes | None]]],
        outcomes: list[bool],
        after: Moment,
    ) -> None:
        """Beside others that take from `todo` too."""
        while True:
            try:
                place, (piece, data) = todo.popleft()
            except IndexError:
                return
            outcomes[place] = self._move(piece, data, after)

    def _move(self, piece: Piece, data: Bytes | None, after: Moment) -> bool:
        """Whether all of it is right; where it is not, its blocks hold anything."""
        if data is None:
            self._count("load_missing")
            return False
        try:
            key = ObjectKey.unpack(piece.key)
            pool = self._pool
            proof = Proof(data, key, piece.object_blocks, pool.block_bytes, pool.form)
            pool.write(piece.block_ids, payload(data), piece.skipped, proof.read, after)
            proof.conclude()
        except UnusableObject as error:
            logger.warning("a stored object is not used: %s", error.message)
            self._count("load_damaged")
            self._discard([piece.key])
            return False
        return True
