"""Claims on stored objects follow the contexts that there are."""

import numpy as np
import pytest

from router.contexts.claims import claims_on, marked, oldest_turn_s
from router.contexts.context import Moment
from router.contexts.messages import Kind, NewContext, TurnResult
from router.contexts.settings import ContextSettings
from router.contexts.table import ContextTable
from router.contexts.wire import Begin, Create, Fork
from router.core.types import ContextId, Tenant

TENANT = Tenant("a")
START = Moment(0.0, 1000.0)


def packed(*hashes: int) -> bytes:
    return np.array(hashes, "<u8").tobytes()


@pytest.fixture
def table() -> ContextTable:
    return ContextTable(ContextSettings("app"), 1, 0.0)


def create(table: ContextTable, name: str, *hashes: int, model: str = "m") -> None:
    new = NewContext(model, Kind.PROMPT, b"aaaa", b"", 60, claims=packed(*hashes))
    table.create(Create(TENANT, ContextId(name), new), START)


def claimed(table: ContextTable, *hashes: int, model: str = "m") -> list[bool]:
    return list(map(bool, marked(packed(*hashes), claims_on(model, table.shelf))))


def test_an_object_is_claimed_until_the_last_context_that_holds_it_goes(
    table: ContextTable,
) -> None:
    create(table, "ctx-1", 1, 2)
    create(table, "ctx-2", 1, 9)
    table.fork(Fork(TENANT, ContextId("ctx-1"), ContextId("ctx-3"), None, None), START)
    assert claimed(table, 9, 2, 5, 1) == [True, True, False, True]

    table.delete(TENANT, ContextId("ctx-1"), START)
    assert claimed(table, 1, 2, 9) == [True, True, True], "the fork claims them, too"

    table.delete(TENANT, ContextId("ctx-3"), START)
    assert claimed(table, 1, 2, 9) == [True, False, True]


def test_a_turn_claims_all_of_what_it_leaves(table: ContextTable) -> None:
    create(table, "ctx-1", 1, 2)
    turn = table.begin(Begin(TENANT, ContextId("ctx-1"), 7, "m", Kind.PROMPT, None, 0.0), START)
    assert turn is not None
    table.commit(turn.ticket, TurnResult(b"bbbb", claims=packed(1, 4)), START)
    assert claimed(table, 1, 2, 4) == [True, False, True]


def test_nobody_claims_for_another_model(table: ContextTable) -> None:
    create(table, "ctx-1", 1)
    create(table, "ctx-2", 2, model="n")
    assert claimed(table, 1, 2) == [True, False]
    assert claimed(table, 1, 2, model="n") == [False, True]
    assert claimed(table, 1, 2, model="o") == [False, False]


def test_extreme_and_repeated_hashes_are_told_apart() -> None:
    top = 2**64 - 1
    asked, claims = packed(top, 0, top, 5), packed(top, top, 6)
    assert marked(asked, claims).tolist() == [True, False, True, False]
    assert marked(b"", claims).tolist() == []
    assert marked(asked, b"").tolist() == [False] * 4


def test_the_oldest_open_turn_is_as_old_as_its_begin(table: ContextTable) -> None:
    for number, at in enumerate((0.0, 7.0)):
        create(table, f"ctx-{number}")
        begin = Begin(TENANT, ContextId(f"ctx-{number}"), number, "m", Kind.PROMPT, None, 0.0)
        table.begin(begin, Moment(at, 1000.0 + at))
    later = Moment(9.0, 1009.0)
    assert oldest_turn_s("m", table.shelf, later) == 9.0
    assert oldest_turn_s("n", table.shelf, later) == 0.0
    table.turns.abandon(TENANT, ContextId("ctx-0"), 0, later)
    assert oldest_turn_s("m", table.shelf, later) == 2.0
