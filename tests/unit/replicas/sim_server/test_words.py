"""Text to tokens: own words come back as they were drawn, all else is equal where it is equal."""

from hypothesis import given, settings
from hypothesis import strategies as st

from replicas.sim.text import VOCABULARY, text
from replicas.sim_server.words import MARKS, mark, text_of, tokenize


@settings(deadline=None)
@given(ids=st.lists(st.integers(0, VOCABULARY - 1), max_size=30))
def test_what_the_engine_says_becomes_the_tokens_that_it_drew(ids: list[int]) -> None:
    assert tokenize(text(ids)) == ids


@settings(deadline=None)
@given(before=st.text(max_size=40), after=st.text(max_size=40))
def test_a_longer_text_begins_with_the_tokens_of_its_beginning(before: str, after: str) -> None:
    """Where a line ends, so does a token."""
    head = tokenize(before + "\n.")
    assert tokenize(before + "\n." + after)[: len(head)] == head


def test_other_text_costs_a_token_for_a_few_characters() -> None:
    said = "Tell me more about the weather in Reykjavik, please."
    assert len(said) / 6 < len(tokenize(said)) < len(said) / 2
    assert tokenize(said) != tokenize(said.lower())


def test_marks_are_no_text() -> None:
    ids = {mark(name) for name in MARKS}
    assert len(ids) == len(MARKS)
    assert mark("<|stranger|>") == mark("<|other|>")
    assert [text_of(mark(name)) for name in MARKS] == list(MARKS)
    assert not ids & set(tokenize("".join(MARKS)))
