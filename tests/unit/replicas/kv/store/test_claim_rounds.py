"""What contexts claim stays, what they claim no more goes, what may yet be claimed waits."""

import numpy as np
import pytest

from replicas.kv.store.claim_rounds import ClaimRounds
from replicas.kv.store.contents import StoreContents, StoredObject
from replicas.kv.store.objects import Bytes
from replicas.kv.store.tiered import TieredContents
from router.contexts.claims import marked
from router.contexts.wire import Claimed
from router.core.errors import ContextsUnavailable
from tests.unit.replicas.kv.store.stored_objects import Heap

PATIENCE_S = 20.0


def stored(number: int, *, is_for_reuse: bool = False, model: str = "m") -> StoredObject:
    hashes = np.array([number - 1, number], "<u8").tobytes()
    return StoredObject(bytes([number]), model, hashes, 2, 10, is_for_reuse)


class Contexts:
    """Claims the objects with these numbers, by model."""

    def __init__(self) -> None:
        self.claims: dict[str, list[int]] = {"m": []}
        self.oldest_turn_s = 0.0
        self.is_away = False

    async def ask(self, model: str, hashes: bytes) -> Claimed:
        if self.is_away:
            raise ContextsUnavailable("away")
        claims = np.array(self.claims[model], "<u8").tobytes()
        return Claimed(marked(hashes, claims).tobytes(), self.oldest_turn_s)


class Store:
    def __init__(self) -> None:
        self.now = 0.0
        self.contexts = Contexts()
        memory: StoreContents[Bytes] = StoreContents(1000, 100)
        self.contents = TieredContents(memory, Heap(), (), waiting_bytes=0)
        self.rounds = ClaimRounds(self.contents, self.contexts, PATIENCE_S)

    def put(self, *objects: StoredObject) -> None:
        for item in objects:
            self.contents.put(item, np.zeros(1, np.uint8))
        self._spread()

    async def at(self, now: float) -> list[int]:
        """A round at that time; returns what is left, first to leave first."""
        self.now = now
        await self.rounds.run(lambda: self.now)
        self._spread()
        return [item.key[0] for item in self.contents.objects()]

    def _spread(self) -> None:
        self.rounds.note(self.contents.take_changes(), self.now)


@pytest.fixture
def store() -> Store:
    return Store()


async def test_what_was_claimed_goes_with_its_last_claim(store: Store) -> None:
    store.put(stored(1), stored(2), stored(3, is_for_reuse=True))
    store.contexts.claims["m"] = [1, 2, 3]
    assert set(await store.at(1)) == {1, 2, 3}
    store.contexts.claims["m"] = [2]
    assert set(await store.at(2)) == {2, 3}
    store.contexts.claims["m"] = []
    assert await store.at(3) == [3]


async def test_the_unclaimed_leave_first(store: Store) -> None:
    store.put(stored(1), stored(2, is_for_reuse=True), stored(3, is_for_reuse=True))
    store.contexts.claims["m"] = [1, 2]
    assert await store.at(1) == [3, 1, 2]
    store.contexts.claims["m"] = [1, 3]
    assert await store.at(2) == [2, 1, 3]


async def test_what_was_never_claimed_goes_after_a_while(store: Store) -> None:
    store.put(stored(1))
    assert await store.at(PATIENCE_S - 1) == [1]
    assert await store.at(PATIENCE_S) == []


async def test_what_may_be_of_an_open_turn_waits_for_its_end(store: Store) -> None:
    store.put(stored(1), stored(2))
    store.contexts.oldest_turn_s = 100
    assert await store.at(100) == [1, 2]
    store.contexts.claims["m"], store.contexts.oldest_turn_s = [2], 0
    assert await store.at(101) == [2]


async def test_without_an_answer_all_stays(store: Store) -> None:
    store.put(stored(1))
    store.contexts.claims["m"] = [1]
    await store.at(1)
    store.contexts.is_away = True
    assert await store.at(1000) == [1]
    assert store.rounds.unanswered == 1


async def test_each_model_is_asked_for_its_own(store: Store) -> None:
    store.contexts.claims = {"m": [1], "n": [2]}
    store.put(stored(1), stored(2, model="n"), stored(3), stored(4, model="n"))
    assert sorted(await store.at(PATIENCE_S)) == [1, 2]


async def test_what_others_want_meanwhile_stays_for_them(store: Store) -> None:
    store.put(stored(1))
    store.contexts.claims["m"] = [1]
    await store.at(1)
    store.contents.offer(stored(1, is_for_reuse=True))
    store.contexts.claims["m"] = []
    assert await store.at(PATIENCE_S + 1) == [1]
