"""Claims on stored blocks follow the contexts that there are."""

from collections.abc import Iterable

import numpy as np

from router.contexts.claims import claimed_blocks
from router.contexts.context import Moment
from router.contexts.messages import Kind, NewContext
from router.contexts.settings import ContextSettings
from router.contexts.table import ContextTable
from router.contexts.wire import Create, Fork
from router.core.types import BlockHash, ContextId, Tenant

NOW = Moment(0.0, 0.0)


def pairs(tenant: Tenant, model: str, token_ids: bytes) -> Iterable[BlockHash]:
    """Blocks of two tokens, by their chain."""
    ids = np.frombuffer(token_ids, dtype="<u4").tolist()
    return [BlockHash(hash((tenant, model, tuple(ids[:end])))) for end in range(2, len(ids) + 1, 2)]


def create(table: ContextTable, tenant: str, name: str, *ids: int, model: str = "m") -> None:
    new = NewContext(model, Kind.PROMPT, np.array(ids, "<u4").tobytes(), b"", 60)
    table.create(Create(Tenant(tenant), ContextId(name), new), NOW)


def claimed(table: ContextTable, tenant: str, model: str = "m") -> set[BlockHash]:
    return claimed_blocks(table.shelf, Tenant(tenant), model, pairs)


def test_a_block_is_claimed_until_the_last_context_that_holds_it_goes() -> None:
    table = ContextTable(ContextSettings("app"), 1, 0.0)
    create(table, "a", "ctx-1", 1, 2, 3, 4, 5)
    create(table, "a", "ctx-2", 1, 2, 9, 9)
    table.fork(Fork(Tenant("a"), ContextId("ctx-1"), ContextId("ctx-3"), None, None), NOW)
    assert len(claimed(table, "a")) == 3

    table.delete(Tenant("a"), ContextId("ctx-1"), NOW)
    assert len(claimed(table, "a")) == 3, "the fork claims them, too"

    table.delete(Tenant("a"), ContextId("ctx-3"), NOW)
    assert claimed(table, "a") == set(
        pairs(Tenant("a"), "m", np.array([1, 2, 9, 9], "<u4").tobytes())
    )


def test_nobody_claims_for_another_tenant_or_model() -> None:
    table = ContextTable(ContextSettings("app"), 1, 0.0)
    create(table, "a", "ctx-1", 1, 2)
    create(table, "b", "ctx-2", 1, 2)
    create(table, "a", "ctx-3", 1, 2, model="n")

    assert (
        len(claimed(table, "a")) == len(claimed(table, "b")) == len(claimed(table, "a", "n")) == 1
    )
    assert not claimed(table, "a") & claimed(table, "b")
    assert claimed(table, "c") == set()
