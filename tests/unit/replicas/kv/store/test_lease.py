"""A replica's hold on its node's store, whatever becomes of that."""

import asyncio
from collections.abc import Callable

from replicas.kv.store.lease import StoreLease
from router.core.types import ReplicaId

REPLICA = ReplicaId("r")


class Store:
    def __init__(self) -> None:
        self.renewals: list[tuple[ReplicaId, str]] = []
        self.left: list[ReplicaId] = []
        self.is_away = False

    async def renew(self, replica_id: ReplicaId, model: str) -> None:
        if self.is_away:
            raise ConnectionError("away")
        self.renewals.append((replica_id, model))

    async def leave(self, replica_id: ReplicaId) -> None:
        if self.is_away:
            raise ConnectionError("away")
        self.left.append(replica_id)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.001)


async def test_it_is_renewed_until_it_is_given_up() -> None:
    store = Store()
    lease = StoreLease(store, REPLICA, "m", interval_s=0.001)
    lease.begin()
    await until(lambda: len(store.renewals) > 2)
    await lease.end()
    await lease.end()
    assert set(store.renewals) == {(REPLICA, "m")}
    assert store.left == [REPLICA]


async def test_a_store_that_is_away_is_asked_for_again_and_again() -> None:
    store = Store()
    store.is_away = True
    lease = StoreLease(store, REPLICA, "m", interval_s=0.001)
    lease.begin()
    await until(lambda: lease.failures > 2)
    store.is_away = False
    await until(lambda: bool(store.renewals))
    store.is_away = True
    await lease.end()
    assert store.left == []


async def test_a_lease_that_never_began_is_not_given_up() -> None:
    store = Store()
    await StoreLease(store, REPLICA, "m").end()
    assert store.left == []
