"""Rows of a journal: whole tables come back from them, damaged ones never."""

import pytest

from router.contexts.context import Moment
from router.contexts.history import ids_of
from router.contexts.messages import Kind, NewContext, TurnResult, Usage
from router.contexts.records import Entry, read_rows
from router.contexts.restoring import restored
from router.contexts.settings import ContextSettings
from router.contexts.table import ContextTable
from router.contexts.wire import Begin, Create, Fork
from router.core.errors import JournalRefused
from router.core.types import ContextId, ReplicaId, Tenant

NOW = Moment(100.0, 1_000_000.0)
SETTINGS = ContextSettings("app")
TENANT, NAME = Tenant("t"), ContextId("ctx-1")


@pytest.fixture
def rows() -> dict[str, bytes]:
    """A context of one turn, a fork of it, and one that has expired."""
    table = ContextTable(SETTINGS, 1, NOW.monotonic)
    entries: list[Entry] = []
    usage = Usage(2, 0, 1)
    new = NewContext("m", Kind.CHAT, b"aaaabbbb", b"{}", 600, {"k": "v"}, usage, ReplicaId("r"))
    entries += table.create(Create(TENANT, NAME, new), NOW).entries
    turn = table.begin(Begin(TENANT, NAME, 7, "m", Kind.CHAT, None, 0.0), NOW)
    assert turn is not None
    entries += table.commit(turn.ticket, TurnResult(b"cccc", b"+", claims=b"claimed!"), NOW).entries
    entries += table.fork(Fork(TENANT, NAME, ContextId("ctx-2"), 60, None), NOW).entries
    brief = Create(TENANT, ContextId("ctx-3"), NewContext("m", Kind.CHAT, b"", b"", 1))
    table.create(brief, NOW)
    entries += table.expire(ContextId("ctx-3"), Moment(200.0, 1_000_100.0)).entries
    return {key: value for key, value in dict(entries).items() if value is not None}


def test_a_table_comes_back_as_it_was(rows: dict[str, bytes]) -> None:
    later = Moment(5.0, NOW.wall + 50)
    table, orphans = restored(read_rows(rows.items()), SETTINGS, 2, later)

    context = table.shelf.get(NAME)
    assert context is not None and orphans == []
    assert ids_of(context.history) == b"aaaabbbbcccc"
    assert context.claims == b"claimed!"
    assert (context.turns, context.last_nonce, context.metadata) == (1, 7, {"k": "v"})
    assert context.idle_until == pytest.approx(5.0 + 550)
    assert table.shelf.pool.segments == 2, "the fork has no history of its own"


def test_everything_has_a_minute_left_however_long_the_manager_was_away(
    rows: dict[str, bytes],
) -> None:
    later = Moment(5.0, NOW.wall + 7 * 86_400)
    table, _ = restored(read_rows(rows.items()), SETTINGS, 2, later)

    assert {context.idle_until for context in table.shelf} == {65.0}


def test_a_clock_that_was_set_back_gives_no_longer_life(rows: dict[str, bytes]) -> None:
    earlier = Moment(5.0, NOW.wall - 86_400)
    table, _ = restored(read_rows(rows.items()), SETTINGS, 2, earlier)

    assert {context.idle_until for context in table.shelf} == {605.0, 65.0}


def test_each_single_changed_bit_is_noticed(rows: dict[str, bytes]) -> None:
    for key, row in rows.items():
        for position in range(len(row)):
            changed = bytearray(row)
            changed[position] ^= 4
            with pytest.raises(JournalRefused, match="put back a copy"):
                read_rows({**rows, key: bytes(changed)}.items())


def test_a_row_under_another_key_is_noticed(rows: dict[str, bytes]) -> None:
    moved = rows | {"context/ctx-9": rows["context/ctx-1"]}
    with pytest.raises(JournalRefused):
        read_rows(moved.items())


def test_a_missing_part_of_a_history_is_noticed(rows: dict[str, bytes]) -> None:
    for key in [key for key in rows if key.startswith("segment/")]:
        with pytest.raises(JournalRefused):
            read_rows({k: v for k, v in rows.items() if k != key}.items())


def test_a_history_that_nobody_needs_is_given_up(rows: dict[str, bytes]) -> None:
    alone = {k: v for k, v in rows.items() if not k.startswith("context/")}
    table, orphans = restored(read_rows(alone.items()), SETTINGS, 2, NOW)

    assert sorted(key for key, _ in orphans) == sorted(k for k in rows if "segment" in k)
    assert len(table.shelf) == 0
