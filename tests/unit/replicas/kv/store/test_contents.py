"""What a store has, from its first offer to its end."""

import pytest

from replicas.kv.store.contents import StoreContents, StoredObject


def stored(name: bytes, size_bytes: int = 10, *, is_for_reuse: bool = True) -> StoredObject:
    return StoredObject(name, "m", b"h" * 8, 1, size_bytes, is_for_reuse)


@pytest.fixture
def contents() -> StoreContents[str]:
    return StoreContents(budget_bytes=30, max_objects=5)


def names(contents: StoreContents[str]) -> list[bytes]:
    return [item.key for item in contents.objects()]


def test_an_object_is_wanted_once(contents: StoreContents[str]) -> None:
    assert contents.offer(stored(b"a"))
    contents.put(stored(b"a"), "first")
    assert not contents.offer(stored(b"a"))
    contents.put(stored(b"a"), "second")
    assert contents.find(b"a") == "first"


def test_finding_and_offering_are_uses(contents: StoreContents[str]) -> None:
    for name in (b"a", b"b", b"c"):
        contents.put(stored(name), "handle")
    contents.find(b"a")
    contents.offer(stored(b"b"))
    contents.put(stored(b"d"), "handle")
    assert names(contents) == [b"a", b"b", b"d"]
    assert contents.find(b"c") is None
    assert contents.used_bytes == 30


def test_what_was_saved_for_a_context_stays_longest_until_nobody_claims_it(
    contents: StoreContents[str],
) -> None:
    contents.put(stored(b"a", is_for_reuse=False), "handle")
    contents.put(stored(b"b"), "handle")
    assert names(contents) == [b"b", b"a"]
    contents.claim([b"a"], is_claimed=False)
    contents.claim([b"b"], is_claimed=True)
    assert names(contents) == [b"a", b"b"]


def test_what_others_want_too_stays_for_them(contents: StoreContents[str]) -> None:
    contents.put(stored(b"a", is_for_reuse=False), "handle")
    contents.offer(stored(b"a", is_for_reuse=True))
    kept = contents.get(b"a")
    assert kept is not None
    assert kept.is_for_reuse


def test_what_leaves_is_handed_back(contents: StoreContents[str]) -> None:
    for name in (b"a", b"b", b"c"):
        assert contents.put(stored(name), name.decode()) == []
    gone = contents.put(stored(b"d", 15), "d")
    assert [(held.stored.key, held.handle) for held in gone] == [(b"a", "a"), (b"b", "b")]
    assert contents.put(stored(b"c"), "again") == []
    assert [held.handle for held in contents.put(stored(b"e", 31), "e")] == ["e"]


def test_too_large_an_object_leaves_the_rest_alone(contents: StoreContents[str]) -> None:
    contents.put(stored(b"a"), "handle")
    contents.put(stored(b"b", 31), "handle")
    assert names(contents) == [b"a"]
    assert contents.find(b"b") is None


def test_an_object_that_only_claimed_ones_leave_no_room_for_moves_nothing(
    contents: StoreContents[str],
) -> None:
    contents.put(stored(b"a", 10), "handle")
    contents.put(stored(b"b", 20), "handle")
    contents.claim([b"b"], is_claimed=True)
    contents.put(stored(b"c", 25), "handle")
    assert names(contents) == [b"a", b"b"]
    assert contents.used_bytes == 30


def test_small_objects_are_bounded_by_their_number(contents: StoreContents[str]) -> None:
    for number in range(9):
        contents.put(stored(bytes([number]), 1), "handle")
    assert len(contents) == 5
    assert names(contents) == [bytes([number]) for number in range(4, 9)]
