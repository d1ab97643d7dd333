"""A store's rounds of questions to the contexts: what they claim stays longest, the rest goes."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from replicas.kv.store.claim_watch import ClaimWatch
from replicas.kv.store.contents import Changes, StoredObject
from router.contexts.wire import Claimed
from router.core.errors import ContextsUnavailable

HASH_BYTES = 8


class Claimable(Protocol):
    """What a round needs of a store's contents."""

    def objects(self) -> list[StoredObject]: ...

    def claim(self, keys: Sequence[bytes], *, is_claimed: bool) -> None: ...

    def discard(self, keys: Sequence[bytes]) -> None: ...


class Questions(Protocol):
    async def ask(self, model: str, hashes: bytes) -> Claimed:
        """Raises `ContextsUnavailable`: then nothing is known."""
        ...


class ClaimRounds:
    """Of one store; belongs to one event loop. `unanswered` counts questions without an answer,
    after which all stays as it is."""

    def __init__(self, contents: Claimable, questions: Questions, unclaimed_after_s: float) -> None:
        self.unanswered = 0
        self._contents = contents
        self._questions = questions
        self._watch = ClaimWatch(unclaimed_after_s)

    def note(self, changes: Changes, now: float) -> None:
        self._watch.note(changes, now)

    async def run(self, clock: Callable[[], float]) -> None:
        """One round over all that is stored. O(objects)."""
        for model, objects in _by_model(self._contents.objects()).items():
            hashes = b"".join([stored.hashes[-HASH_BYTES:] for stored in objects])
            try:
                claimed = await self._questions.ask(model, hashes)
            except ContextsUnavailable:
                self.unanswered += 1
            else:
                self._heed(objects, claimed, clock())

    def _heed(self, objects: Sequence[StoredObject], claimed: Claimed, now: float) -> None:
        marks = [mark == 1 for mark in claimed.marks]
        for is_claimed in (True, False):
            keys = [o.key for o, mark in zip(objects, marks, strict=True) if mark is is_claimed]
            self._contents.claim(keys, is_claimed=is_claimed)
        gone = self._watch.judge(objects, marks, claimed.oldest_turn_s, now)
        self._contents.discard(gone)


def _by_model(objects: Iterable[StoredObject]) -> dict[str, list[StoredObject]]:
    groups: dict[str, list[StoredObject]] = defaultdict(list)
    for stored in objects:
        groups[stored.model].append(stored)
    return groups
