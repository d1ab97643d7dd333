"""From drawn tokens to the bytes of an answer, without an engine around it."""

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from replicas.engines.protocol import Route
from replicas.sim.generation import Generation, GenerationLimits
from replicas.sim.sequence import Drawn
from replicas.sim.text import text
from tests.unit.replicas.sim.requests import make_request

LIMITS = GenerationLimits("m", block_size=4, max_model_len=100, default_max_tokens=6)


def run(*prompts: list[int], **options: Any) -> bytes:
    """The whole answer, each choice drawing in turn as in one engine pass."""
    generation = Generation(make_request(*prompts, **options), LIMITS, created=0)
    written, running = [], list(generation.sequences)
    while running:
        for sequence in list(running):
            token_id = sequence.draw()
            drawn_tokens = len(sequence.tokens) - sequence.prompt_tokens
            is_last = drawn_tokens == sequence.max_tokens
            part, is_over = generation.accept(Drawn(sequence, token_id, is_last))
            written.append(part)
            if is_over:
                running.remove(sequence)
    assert generation.is_finished
    return b"".join([*written, generation.closing()])


def document(*prompts: list[int], **options: Any) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(run(*prompts, **options))
    return answer


def chunks(*prompts: list[int], **options: Any) -> list[dict[str, Any]]:
    events = run(*prompts, is_stream=True, **options).decode().removesuffix("\n\n").split("\n\n")
    assert events.pop() == "data: [DONE]"
    return [json.loads(event.removeprefix("data: ")) for event in events]


def test_without_a_limit_the_model_stops_by_itself() -> None:
    (choice,) = document([1])["choices"]
    assert choice["finish_reason"] == "stop"
    assert len(choice["text"].split()) == LIMITS.default_max_tokens


def test_a_limit_is_the_exact_length() -> None:
    (choice,) = document([1], max_tokens=9)["choices"]
    assert choice["finish_reason"] == "length"
    assert len(choice["text"].split()) == 9


def test_the_default_length_keeps_within_the_context() -> None:
    assert document([1] * 97)["usage"]["completion_tokens"] == 3


def test_continuous_usage_counts_in_every_chunk() -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    seen = chunks([1, 2], max_tokens=3, stream_options=options)
    assert [chunk["usage"]["completion_tokens"] for chunk in seen] == [1, 2, 3, 3]


def test_a_stop_token_ends_the_answer_unseen_and_is_named() -> None:
    tokens = document([1], max_tokens=4, temperature=0, logprobs=0)["choices"][0]
    whole = chunks([1], max_tokens=4, temperature=0)
    stop_id = next(i for i in range(4096) if text([i]) == tokens["logprobs"]["tokens"][1])
    options = {"max_tokens": 4, "temperature": 0, "stop_token_ids": [stop_id]}
    (choice,) = document([1], **options)["choices"]
    assert len(whole) == 4
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", stop_id)
    assert len(choice["text"].split()) == 1
    (shown,) = document([1], **options, include_stop_str_in_output=True)["choices"]
    assert len(shown["text"].split()) == 2


@settings(deadline=None)
@given(stops=st.lists(st.text("aeio bdg", min_size=1, max_size=4), min_size=1, max_size=3))
def test_a_stream_shows_exactly_the_text_before_the_first_stop(stops: list[str]) -> None:
    (whole,) = [choice["text"] for choice in document([7], max_tokens=8)["choices"]]
    ends = [whole.find(stop) for stop in stops if stop in whole]
    expected = whole[: min(ends, default=len(whole))]
    options = {"max_tokens": 8, "stop": stops}
    said = "".join(chunk["choices"][0]["text"] for chunk in chunks([7], **options))
    assert said == document([7], **options)["choices"][0]["text"] == expected


def test_a_stop_string_is_shown_when_asked_for() -> None:
    (whole,) = [choice["text"] for choice in document([7], max_tokens=8)["choices"]]
    stop = whole[8:11]
    options = {"stop": stop, "include_stop_str_in_output": True}
    (choice,) = document([7], max_tokens=8, **options)["choices"]
    assert choice["text"] == whole[: whole.index(stop) + len(stop)]


def test_echo_of_ids_repeats_their_text_once() -> None:
    options = {"prompt": [5, 6], "echo": True, "max_tokens": 3}
    said = "".join(chunk["choices"][0]["text"] for chunk in chunks([5, 6], **options))
    assert said.startswith(text([5, 6]))
    assert len(said.split()) == 5


def test_a_response_cut_by_its_limit_is_incomplete() -> None:
    cut = document([1], route=Route.RESPONSES, max_output_tokens=3)
    whole = document([1], route=Route.RESPONSES)
    assert (cut["status"], cut["incomplete_details"]["reason"]) == (
        "incomplete",
        "max_output_tokens",
    )
    assert (whole["status"], whole["incomplete_details"]) == ("completed", None)


def test_completion_logprob_offsets_point_into_the_text() -> None:
    (choice,) = document([1], max_tokens=4, logprobs=2)["choices"]
    offsets, tokens = choice["logprobs"]["text_offset"], choice["logprobs"]["tokens"]
    for offset, token in zip(offsets, tokens, strict=True):
        assert choice["text"][offset:].startswith(token)
    assert all(len(top) == 2 for top in choice["logprobs"]["top_logprobs"])
