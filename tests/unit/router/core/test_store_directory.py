"""The store directory knows where stored blocks lie and forgets them with their store."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from router.core.store_directory import StoreDirectory, StoredPiece
from router.core.types import StoreId

A, B = StoreId("a"), StoreId("b")


def blocks(*hashes: int) -> NDArray[np.uint64]:
    return np.array(hashes, np.uint64)


def test_objects_are_found_where_they_lie_in_the_chain_gaps_or_not() -> None:
    directory = StoreDirectory(10)
    directory.add(blocks(1, 2), A, b"x")
    directory.add(blocks(5, 6), A, b"z")
    directory.add(blocks(5, 6), B, b"y")
    assert directory.find(blocks(1, 2, 3, 4, 5, 6, 7)) == [
        StoredPiece(0, 2, {A: b"x"}),
        StoredPiece(4, 2, {A: b"z", B: b"y"}),
    ]
    assert directory.find(blocks(9, 1, 2)) == []


def test_objects_of_several_lengths_come_in_the_order_of_the_chain() -> None:
    directory = StoreDirectory(10)
    directory.add(blocks(3, 4), A, b"x")
    directory.add(blocks(1), A, b"y")
    assert [piece.first_block for piece in directory.find(blocks(1, 2, 3, 4))] == [0, 2]
    directory.add(blocks(1, 2, 3, 4), A, b"z")
    assert [piece.blocks for piece in directory.find(blocks(1, 2, 3, 4))] == [1, 4]
    assert len(directory) == 5


def test_a_removed_object_leaves_what_a_newer_one_holds() -> None:
    directory = StoreDirectory(10)
    directory.add(blocks(1, 2), A, b"old")
    directory.add(blocks(1, 2), A, b"newer")
    directory.remove(blocks(1, 2), A, b"old")
    directory.remove(blocks(7), A, b"unknown")
    assert directory.find(blocks(1, 2)) == [StoredPiece(0, 2, {A: b"newer"})]
    directory.remove(blocks(1, 2), A, b"newer")
    assert directory.find(blocks(1, 2)) == []
    assert len(directory) == 0


def test_a_lost_store_takes_its_objects_and_no_others() -> None:
    directory = StoreDirectory(10)
    directory.add(blocks(1, 2), A, b"x")
    directory.add(blocks(3, 4), A, b"y")
    directory.add(blocks(3, 4), B, b"y")
    assert directory.forget(A) == 4
    assert directory.find(blocks(1, 2, 3, 4)) == [StoredPiece(2, 2, {B: b"y"})]
    assert len(directory) == 2


def test_the_least_recently_added_objects_go_at_the_cap() -> None:
    directory = StoreDirectory(4)
    directory.add(blocks(1, 2), A, b"x")
    directory.add(blocks(3, 4), A, b"y")
    directory.add(blocks(1, 2), A, b"x")
    directory.add(blocks(5, 6), A, b"z")
    assert [piece.keys for piece in directory.find(blocks(1, 2, 3, 4))] == [{A: b"x"}]
    assert (len(directory), directory.evicted) == (4, 2)


@given(
    st.lists(
        st.tuples(st.booleans(), st.integers(0, 3), st.integers(1, 3), st.sampled_from([A, B])),
        max_size=30,
    )
)
def test_it_counts_what_it_holds(changes: list[tuple[bool, int, int, StoreId]]) -> None:
    directory, chain = StoreDirectory(1000), blocks(*range(1, 13))
    for is_added, place, length, store in changes:
        change = directory.add if is_added else directory.remove
        change(chain[place * length : (place + 1) * length], store, b"key")
    assert len(directory) == sum(piece.blocks for piece in directory.find(chain))
    for store in (A, B):
        directory.forget(store)
    assert len(directory) == 0
    assert directory.find(chain) == []
