"""Stored KV is of one engine configuration, one tenant and one prefix: anything else is a miss."""

import dataclasses
import hashlib
import time
from collections.abc import Sequence

import pytest

from replicas.kv.connector.chains import RouterChain
from replicas.kv.connector.messages import LoadJob, Piece
from replicas.kv.connector.planner import TransferPlanner
from replicas.kv.connector.pool import Bytes, HostPool
from replicas.kv.connector.transfers import ObjectStore, Transfers
from replicas.kv.store.namespaces import Namespace
from replicas.kv.store.objects import FORMLESS, ObjectKey, seal
from router.core.transfer import StoredRun, TransferRequest
from router.core.types import StoreId
from tests.unit.replicas.kv.connector.engine_pool import MemoryStore, pool_of
from tests.unit.replicas.kv.connector.test_faulted_loads import Connector

WIDTH = 4
IDS = (0, 1, 2, 3)
OWN: dict[str, object] = {
    field.name: 1 if field.type is int else field.name for field in dataclasses.fields(Namespace)
}
PREFIX = {"tenant": "a", "adapter": "none", "image": "none", "tokens": "1 2 3"}
"""What the engine chains into a block's own hash."""


def namespace(**changed: object) -> bytes:
    return Namespace(**(OWN | changed)).digest  # type: ignore[arg-type]


def last_hash(**changed: str) -> bytes:
    return hashlib.sha256(repr(sorted((PREFIX | changed).items())).encode()).digest()


OWN_KEY = ObjectKey(namespace(), last_hash())
OTHER_KEYS = {
    name: ObjectKey(namespace(**{name: 2 if value == 1 else f"{value}-other"}), last_hash())
    for name, value in OWN.items()
} | {name: ObjectKey(namespace(), last_hash(**{name: "other"})) for name in PREFIX}


class Obliging(MemoryStore):
    """Answers with what it has, whatever it is asked for."""

    def fetch(self, pieces: Sequence[Piece], timeout_s: float) -> list[Bytes | None]:
        (item,) = self.objects.values()
        return [item.data for _ in pieces]


@pytest.fixture
def stored() -> MemoryStore:
    store = MemoryStore()
    Connector(store).save(0)
    (item,) = store.objects.values()
    seal(item.data, OWN_KEY, WIDTH)
    store.objects = {OWN_KEY.pack(): item}
    return store


def lost(store: ObjectStore, key: ObjectKey, form: bytes = FORMLESS) -> set[int]:
    _, layers = pool_of(8)
    transfers = Transfers(HostPool(layers, form), store, held_bytes=2**20, load_timeout_s=1.0)
    transfers.load(LoadJob("r", (Piece(key.pack(), "store", WIDTH, 0, 0, IDS),)))
    while not (outcome := transfers.finished())[0]:
        time.sleep(0.0005)
    return outcome[1]


def planned(engine: ObjectKey, key: ObjectKey) -> int:
    """Blocks that an engine, whose own key of the place is `engine`, loads from an object."""
    planner = TransferPlanner(engine.namespace, WIDTH)
    run = StoredRun(0, WIDTH, StoreId("store"), key.pack())
    planner.add("r", TransferRequest((run,)), RouterChain(16, None))
    return planner.match("r", [b""] * (WIDTH - 1) + [engine.last_hash, b""], 0, WIDTH + 1)


def test_what_is_the_same_in_all_is_a_hit(stored: MemoryStore) -> None:
    assert planned(OWN_KEY, OWN_KEY) == WIDTH
    assert lost(stored, OWN_KEY) == set()


@pytest.mark.parametrize("field", list(OTHER_KEYS))
def test_what_differs_in_one_field_is_a_miss(stored: MemoryStore, field: str) -> None:
    """In the plan, in the store, and, where a store hands it out all the same, at the load."""
    other = OTHER_KEYS[field]
    assert planned(other, OWN_KEY) == 0
    assert lost(stored, other) == set(IDS)
    obliging = Obliging()
    obliging.objects = dict(stored.objects)
    assert lost(obliging, OWN_KEY) == set()
    assert lost(obliging, other) == set(IDS)


def test_blocks_that_another_kernel_laid_out_are_a_miss(stored: MemoryStore) -> None:
    assert lost(stored, OWN_KEY, b"f" * 32) == set(IDS)


def test_the_table_has_every_field_of_the_key() -> None:
    assert {field.name for field in dataclasses.fields(Namespace)} < set(OTHER_KEYS)
    assert len({key.pack() for key in OTHER_KEYS.values()} | {OWN_KEY.pack()}) == 1 + len(
        OTHER_KEYS
    )


@pytest.mark.parametrize("full_blocks", range(1, WIDTH))
def test_an_object_that_a_prompt_fills_in_part_gives_no_credit(full_blocks: int) -> None:
    planner = TransferPlanner(OWN_KEY.namespace, WIDTH)
    run = StoredRun(0, WIDTH, StoreId("store"), OWN_KEY.pack())
    planner.add("r", TransferRequest((run,)), RouterChain(16, None))
    assert planner.match("r", [OWN_KEY.last_hash] * full_blocks, 0, full_blocks) == 0
