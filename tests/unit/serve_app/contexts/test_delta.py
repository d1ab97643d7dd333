"""What a turn adds, from two renderings."""

from array import array

from hypothesis import given
from hypothesis import strategies as st

from serve_app.contexts.delta import common_end, common_tokens, delta


def test_new_messages_are_what_the_second_rendering_has_more() -> None:
    assert delta("<u>hi</u>", "<u>hi</u><u>again</u><a>", "") == "<u>again</u><a>"


def test_the_end_of_an_answer_belongs_to_what_is_added() -> None:
    """The model stopped before it, or was cut off: the stored ids do not have it."""
    assert delta("<u>hi</u><a>ho</a>", "<u>hi</u><a>ho</a><u>x</u>", "</a>") == "</a><u>x</u>"


def test_an_end_that_only_later_messages_bring_is_added_with_them() -> None:
    assert delta("<u>hi</u><a>ho", "<u>hi</u><a>ho</a><u>x</u>", "") == "</a><u>x</u>"


def test_a_rewritten_history_has_no_delta() -> None:
    assert delta("<a>(thinking)ho</a>", "<a>ho</a><u>x</u>", "</a>") is None
    assert delta("<a>ho", "<a>ho<u>x</u>", "</a>") is None


def test_ids_are_compared_like_text() -> None:
    assert delta([1, 2, 3], [1, 2, 3, 4], [3]) == [3, 4]
    assert delta([1, 2, 3], [1, 9, 3, 4], [3]) is None


def test_the_common_end_of_two_answers_is_what_the_template_puts_behind_them() -> None:
    assert common_end("<u>a</u><a>a</a>\n", "<u>a</u><a>b</a>\n") == "</a>\n"
    assert common_end([1, 7, 3], [1, 8, 3]) == [3]
    assert common_end("a", "b") == ""


ids = st.lists(st.integers(0, 3), max_size=6)


@given(ids, ids)
def test_common_tokens_are_counted_in_packed_ids(one: list[int], other: list[int]) -> None:
    shared = 0
    while one[: shared + 1] == other[: shared + 1] and shared < min(len(one), len(other)):
        shared += 1
    packed = [array("I", run).tobytes() for run in (one, other)]
    assert common_tokens(*packed) == shared
