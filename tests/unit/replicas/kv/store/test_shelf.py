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
    shelf.claim([b"a"])
    assert shelf.put(b"d", 20) == [b"b", b"c"]
    assert b"a" in shelf


def test_the_claimed_leave_where_there_is_nothing_else() -> None:
    shelf = filled(30, b"a", b"b", b"c")
    shelf.claim([b"a", b"b", b"c"])
    assert shelf.put(b"d", 10) == [b"d"]
    shelf.claim([b"e"])
    assert shelf.put(b"e", 20) == [b"a", b"b"]


def test_a_claim_may_come_before_its_object() -> None:
    shelf = filled(20, b"a")
    shelf.claim([b"b"])
    shelf.put(b"b", 10)
    assert shelf.put(b"c", 10) == [b"a"]


def test_the_last_release_says_what_nobody_wants() -> None:
    shelf = filled(20, b"a")
    shelf.claim([b"a"])
    shelf.claim([b"a", b"b"])
    assert shelf.release([b"a"]) == []
    assert shelf.release([b"a", b"b"]) == [b"a"]


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
    shelf, sizes, claims = Shelf(100), dict[bytes, int](), dict[bytes, int]()
    for step, key, size_bytes in steps:
        if step == "put":
            sizes[key] = size_bytes
            for gone in shelf.put(key, size_bytes):
                del sizes[gone]
        elif step == "touch":
            assert shelf.touch(key) == (key in sizes)
        elif step == "remove":
            assert shelf.remove(key) == (sizes.pop(key, None) is not None)
        elif step == "claim":
            shelf.claim([key])
            claims[key] = claims.get(key, 0) + 1
        elif claims.get(key):
            shelf.release([key])
            claims[key] -= 1
        assert set(shelf) == set(sizes)
        assert shelf.used_bytes == sum(sizes.values()) <= 100
