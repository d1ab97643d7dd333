"""What a body means, and what is refused."""

from typing import Any

import pytest

from replicas.engines.protocol import Route
from replicas.sim.request import GenerationParams, check_length, parse_params
from router.core.errors import RequestRejected
from tests.unit.replicas.sim.requests import make_request


def parsed(route: Route = Route.COMPLETIONS, **fields: Any) -> GenerationParams:
    return parse_params(make_request([1], route=route, **fields))


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": "many"}, None),
        ({"n": 0}, "n"),
        ({"n": 129}, "n"),
        ({"n": 2, "temperature": 0}, "n"),
        ({"stop": ["", "x"]}, "stop"),
        ({"stop": 3}, None),
        ({"temperature": "hot"}, None),
        ({"stream_options": "yes"}, None),
    ],
)
def test_a_wrong_value_is_refused(fields: dict[str, Any], param: str | None) -> None:
    with pytest.raises(RequestRejected) as refusal:
        parsed(**fields)
    assert (refusal.value.status, refusal.value.param) == (400, param)


def test_a_refusal_never_repeats_what_the_client_sent() -> None:
    with pytest.raises(RequestRejected) as refusal:
        parsed(temperature="my secret")
    assert "secret" not in refusal.value.message


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens", "max_output_tokens"])
def test_every_name_of_the_limit_counts(name: str) -> None:
    assert parsed(**{name: 7}).max_tokens == 7


def test_max_completion_tokens_wins_over_the_older_name() -> None:
    assert parsed(max_tokens=9, max_completion_tokens=7).max_tokens == 7


def test_null_means_the_default() -> None:
    params = parsed(max_tokens=None, n=None, stop=None, temperature=None, stream_options=None)
    assert params == parsed()
    assert (params.max_tokens, params.choices, params.stop) == (None, 1, ())


@pytest.mark.parametrize(
    ("route", "fields", "expected"),
    [
        (Route.CHAT, {"logprobs": True, "top_logprobs": 2}, 2),
        (Route.CHAT, {"logprobs": True}, 0),
        (Route.CHAT, {"logprobs": False, "top_logprobs": 2}, None),
        (Route.COMPLETIONS, {"logprobs": 0}, 0),
        (Route.COMPLETIONS, {}, None),
    ],
)
def test_each_route_asks_for_logprobs_its_own_way(
    route: Route, fields: dict[str, Any], expected: int | None
) -> None:
    assert parsed(route, **fields).top_logprobs == expected


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [("a", ("a",)), (["a", "b"], ("a", "b")), ([1, 2], ()), ([[1], [2]], ())],
)
def test_echo_repeats_text_where_text_was_sent(prompt: Any, expected: tuple[str, ...]) -> None:
    assert parsed(echo=True, prompt=prompt).echo_texts == expected


@pytest.mark.parametrize(
    ("prompt_tokens", "max_tokens", "is_refused"),
    [(90, 10, False), (91, 10, True), (99, None, False), (100, None, True), (0, 1, True)],
)
def test_prompt_and_answer_must_fit_the_context(
    prompt_tokens: int, max_tokens: int | None, is_refused: bool
) -> None:
    params = parsed(max_tokens=max_tokens)
    if is_refused:
        with pytest.raises(RequestRejected):
            check_length(prompt_tokens, params, max_model_len=100)
    else:
        check_length(prompt_tokens, params, max_model_len=100)
