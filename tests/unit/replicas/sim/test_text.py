"""The simulated model's text is a function of all tokens before."""

from array import array

from replicas.sim.text import VOCABULARY, Sampler, piece, text, variant


def draw(prompt: list[int], tokens: int, which: int = 0) -> list[int]:
    sampler = Sampler(array("I", prompt).tobytes(), which)
    return [sampler.draw() for _ in range(tokens)]


def test_a_changed_first_token_changes_all_that_follows() -> None:
    one, other = draw([1, *range(500)], 20), draw([2, *range(500)], 20)
    assert sum(a == b for a, b in zip(one, other, strict=True)) < 2


def test_a_prompt_that_continues_an_answer_continues_its_text() -> None:
    whole = draw([1, 2, 3], 10)
    assert draw([1, 2, 3, *whole[:4]], 6) == whole[4:]


def test_every_token_has_its_own_text() -> None:
    assert len({piece(token_id) for token_id in range(VOCABULARY)}) == VOCABULARY
    assert text([1, 2]) == piece(1) + piece(2)


def test_greedy_choices_are_equal_and_sampled_ones_differ_by_seed_and_number() -> None:
    assert variant(0, 5, 0) == variant(0, 6, 1) == 0
    sampled = {variant(1, seed, choice) for seed in (None, 5, 6) for choice in (0, 1)}
    assert len(sampled) == 6
