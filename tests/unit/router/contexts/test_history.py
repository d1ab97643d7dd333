"""Histories share what they have in common and forget what nobody needs."""

import pytest

from router.contexts.history import HistoryPool, Segment, Strand, document_of, ids_of
from router.core.errors import MalformedMessage


def chain(pool: HistoryPool, *tails: bytes) -> list[Segment]:
    """Each continues all of the one before."""
    segments = [pool.begin(tails[0], b"")]
    for tail in tails[1:]:
        last = segments[-1]
        segments.append(pool.extend(last, Strand(last.ids.length, tail), Strand(0, b"")))
    return segments


def test_a_history_is_its_tails_in_order() -> None:
    *_, last = chain(HistoryPool(), b"aaaa", b"", b"bbbbcccc")
    assert ids_of(last) == b"aaaabbbbcccc" and last.tokens == 3


def test_ids_and_document_are_cut_apart_from_each_other() -> None:
    pool = HistoryPool()
    first = pool.begin(b"aaaabbbb", b"[1,2]")
    second = pool.extend(first, Strand(4, b"cccc"), Strand(5, b"+"))
    third = pool.extend(second, Strand(8, b""), Strand(2, b"x"))

    assert (ids_of(second), document_of(second)) == (b"aaaacccc", b"[1,2]+")
    assert (ids_of(third), document_of(third)) == (b"aaaacccc", b"[1x")


def test_what_a_rewritten_history_drops_is_not_kept_for_it() -> None:
    pool = HistoryPool()
    first, second, third = chain(pool, b"aaaa", b"bbbb", b"cccc")
    whole = pool.extend(third, Strand(0, b"zzzz"), Strand(0, b""))
    part = pool.extend(third, Strand(4, b"yyyy"), Strand(0, b""))

    assert whole.parent is None
    assert part.parent is first and ids_of(part) == b"aaaayyyy"
    assert second.holders == 0


def test_a_segment_goes_with_the_last_that_needs_it() -> None:
    pool = HistoryPool()
    trunk = chain(pool, b"aaaa", b"bbbb")
    left = pool.extend(trunk[1], Strand(8, b"llll"), Strand(0, b""))
    right = pool.extend(trunk[1], Strand(8, b"rrrr"), Strand(0, b""))
    assert pool.hold(left) == [left, trunk[1], trunk[0]]
    assert pool.hold(right) == [right]
    assert (pool.segments, pool.stored_bytes) == (4, 16)

    assert pool.release(left) == [left]
    assert pool.release(right) == [right, trunk[1], trunk[0]]
    assert (pool.segments, pool.stored_bytes) == (0, 0)


def test_a_long_conversation_is_put_together_without_recursion() -> None:
    *_, last = chain(HistoryPool(), *([b"abcd"] * 20_000))
    assert ids_of(last) == b"abcd" * 20_000


@pytest.mark.parametrize(("kept", "tail"), [(12, b""), (6, b""), (4, b"xyz")])
def test_nonsense_is_refused(kept: int, tail: bytes) -> None:
    pool = HistoryPool()
    with pytest.raises(MalformedMessage):
        pool.extend(pool.begin(b"aaaabbbb", b""), Strand(kept, tail), Strand(0, b""))
