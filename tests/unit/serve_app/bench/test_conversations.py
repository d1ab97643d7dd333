"""The benchmarks' traffic: seeded, in order, in the stated shares."""

from collections import Counter
from random import Random

import pytest

from serve_app.bench.conversations import Author, Shape, drawn, taking_turns, with_hot, zipf

SHAPE = Shape(
    conversations=4, turns=3, systems=2, system_tokens=20, question_tokens=8, answer_tokens=4
)


def author(seed: int = 1) -> Author:
    return Author(Random(seed), lambda text: len(text.split()))


def test_texts_have_the_tokens_that_were_asked_for() -> None:
    assert len(author().text(50).split()) == 50


def test_each_turn_brings_the_earlier_ones_along() -> None:
    talk = author().conversation("talk", 0, "be kind", SHAPE)
    turns = list(taking_turns([talk], 1, Random(0)))
    assert len(turns) == talk.turns == 3
    assert [len(turn.messages) for turn in turns] == [2, 4, 6]
    assert all(turn.messages[-1]["role"] == "user" for turn in turns)
    assert turns[2].messages[:4] == turns[1].messages


def test_users_take_turns_and_each_talk_keeps_its_order() -> None:
    talks = [author(n).conversation(str(n), 0, "be kind", SHAPE) for n in range(4)]
    turns = list(taking_turns(talks, 2, Random(3)))
    assert len(turns) == 12
    assert {turn.conversation.name for turn in turns[:3]} <= {"0", "1"}
    for talk in talks:
        numbers = [turn.number for turn in turns if turn.conversation is talk]
        assert numbers == [0, 1, 2]


def test_at_most_as_many_talks_are_under_way_as_there_are_users() -> None:
    talks = [author(n).conversation(str(n), 0, "be kind", SHAPE) for n in range(4)]
    under_way: set[str] = set()
    for turn in taking_turns(talks, 2, Random(3)):
        under_way.add(turn.conversation.name)
        assert len(under_way) <= 2
        if turn.number == 2:
            under_way.remove(turn.conversation.name)


def test_drawn_systems_have_their_shares() -> None:
    shares = zipf(6)
    counts = Counter(drawn(shares, 600, Random(2)))
    assert all(abs(counts[system] - 600 * share) <= 1 for system, share in enumerate(shares))


def test_a_hot_system_takes_its_share_and_the_rest_keeps_its_proportions() -> None:
    hot = with_hot(zipf(6), 5, 0.4)
    assert sum(hot) == pytest.approx(1)
    assert hot[5] == 0.4
    assert hot[0] / hot[1] == pytest.approx(2)
