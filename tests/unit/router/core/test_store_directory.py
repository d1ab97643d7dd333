"""The store directory knows where stored blocks lie and forgets them with their store."""

from router.core.store_directory import StoreDirectory, StoreLocation
from router.core.types import StoreId

A, B = StoreLocation(StoreId("a"), b"1"), StoreLocation(StoreId("b"), b"2")


def test_blocks_are_found_up_to_the_first_that_no_store_holds() -> None:
    directory = StoreDirectory(10)
    directory.add([1, 2, 4], A)
    directory.add([2], B)
    assert directory.find([1, 2, 3, 4]) == [(A,), (A, B)]


def test_a_removed_object_leaves_what_a_newer_one_holds() -> None:
    directory = StoreDirectory(10)
    newer = StoreLocation(A.store_id, b"9")
    directory.add([1, 2], A)
    directory.add([2], newer)
    directory.remove([1, 2, 3], A)
    assert directory.find([1]) == []
    assert directory.find([2]) == [(newer,)]


def test_a_lost_store_takes_its_blocks_and_no_others() -> None:
    directory = StoreDirectory(10)
    directory.add([1, 2], A)
    directory.add([2], B)
    assert directory.forget(A.store_id) == 2
    assert directory.find([1]) == []
    assert directory.find([2]) == [(B,)]
    assert len(directory) == 1


def test_the_least_recently_added_blocks_go_at_the_cap() -> None:
    directory = StoreDirectory(3)
    directory.add([1, 2, 3], A)
    directory.add([1], A)
    directory.add([4], A)
    assert directory.find([2]) == []
    assert directory.find([1]) == [(A,)]
    assert (len(directory), directory.evicted) == (3, 1)
