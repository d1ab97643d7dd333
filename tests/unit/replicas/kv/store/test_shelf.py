"""A budget that always holds, and claims that are preferences."""

from hypothesis import given, settings
from hypothesis import strategies as st

from replicas.kv.store.shelf import Shelf

KEYS = st.sampled_from([bytes([65 + index]) for index in range(8)])


def filled(budget_bytes: int, *keys: bytes) -> Shelf:
    shelf = Shelf(budget_bytes)
    for key in keys:
        assert shelf.put(key, 10) == []
    return shelf


def test_the_least_recently_used_leaves_first() -> None:
    shelf = filled(30, b"a", b"b", b"c")
    shelf.touch(b"a")
    assert shelf.put(b"d", 10) == [b"b"]
    assert list(shelf) == [b"c", b"a", b"d"]


def test_the_claimed_leave_after_all_others() -> None:
    shelf = filled(30, b"a", b"b", b"c")
    shelf.claim(b"a", is_claimed=True)
    assert shelf.put(b"d", 20) == [b"b", b"c"]
    assert b"a" in shelf


def test_the_claimed_leave_where_there_is_nothing_else() -> None:
    shelf = filled(30, b"a", b"b", b"c")
    for key in (b"a", b"b", b"c"):
        shelf.claim(key, is_claimed=True)
    assert shelf.put(b"d", 10) == [b"d"]
    assert shelf.put(b"e", 20, is_claimed=True) == [b"a", b"b"]


def test_what_is_claimed_no_more_leaves_like_the_rest() -> None:
    shelf = filled(20, b"a")
    shelf.put(b"b", 10, is_claimed=True)
    shelf.claim(b"b", is_claimed=False)
    assert shelf.put(b"c", 10) == [b"a"]
    assert shelf.put(b"d", 10) == [b"b"]


def test_a_claim_on_what_is_not_there_changes_nothing() -> None:
    shelf = filled(20, b"a")
    shelf.claim(b"b", is_claimed=True)
    assert list(shelf) == [b"a"]


def test_what_is_larger_than_the_budget_does_not_stay() -> None:
    shelf = filled(20, b"a")
    assert shelf.put(b"b", 21) == [b"b"]
    assert list(shelf) == [b"a"]


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["put", "touch", "remove", "claim", "release"]),
            KEYS,
            st.integers(1, 40),
        )
    )
)
def test_the_budget_holds_and_sizes_add_up(steps: list[tuple[str, bytes, int]]) -> None:
    shelf, sizes = Shelf(100), dict[bytes, int]()
    for step, key, size_bytes in steps:
        if step == "put":
            sizes[key] = size_bytes
            for gone in shelf.put(key, size_bytes):
                del sizes[gone]
        elif step == "touch":
            assert shelf.touch(key) == (key in sizes)
        elif step == "remove":
            assert shelf.remove(key) == (sizes.pop(key, None) is not None)
        else:
            shelf.claim(key, is_claimed=step == "claim")
        assert set(shelf) == set(sizes)
        assert shelf.used_bytes == sum(sizes.values()) <= 100
