"""Rules for fields: complete against vLLM's models, and each does what it says."""

from pathlib import Path

import pytest

import serve_app
from router.core.errors import InvalidRequest
from serve_app.allow_list import ALLOW_LIST, ApiRoute, Rule, allow

STEERING = {
    "kv_transfer_params": Rule.REFUSE,
    "ec_transfer_params": Rule.REFUSE,
    "vllm_xargs": Rule.REFUSE,
    "priority": Rule.REFUSE,
    "cache_salt": Rule.MIX,
    "request_id": Rule.REPLACE,
    "session_id": Rule.STRIP,
}
"""Fields by which a client could steer the engine or its cache."""


def vllm_models() -> dict[ApiRoute, list[type]]:
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.entrypoints.openai.completion.protocol import CompletionRequest
    from vllm.entrypoints.openai.responses.protocol import ResponsesRequest
    from vllm.entrypoints.serve.tokenize.protocol import (
        TokenizeChatRequest,
        TokenizeCompletionRequest,
    )

    return {
        ApiRoute.CHAT: [ChatCompletionRequest],
        ApiRoute.COMPLETIONS: [CompletionRequest],
        ApiRoute.RESPONSES: [ResponsesRequest],
        ApiRoute.TOKENIZE: [TokenizeChatRequest, TokenizeCompletionRequest],
    }


@pytest.mark.parametrize("route", ApiRoute)
def test_every_field_of_vllms_models_has_a_rule(route: ApiRoute) -> None:
    """A field that an upgrade brings fails here until somebody has decided about it."""
    fields = {name for model in vllm_models()[route] for name in model.model_fields}
    assert fields - ALLOW_LIST[route].keys() == set()


@pytest.mark.parametrize("route", [ApiRoute.CHAT, ApiRoute.COMPLETIONS, ApiRoute.RESPONSES])
def test_no_field_that_steers_the_engine_passes(route: ApiRoute) -> None:
    assert {name: ALLOW_LIST[route][name] for name in STEERING} == STEERING


@pytest.mark.parametrize("route", ApiRoute)
def test_only_passed_fields_reach_the_engine(route: ApiRoute) -> None:
    harmless = dict.fromkeys(ALLOW_LIST[route])
    kept = allow(route, harmless).body.keys()
    passing = {n for n, rule in ALLOW_LIST[route].items() if rule in (Rule.PASS, Rule.CHECK)}
    assert kept - {"store"} == passing


def test_the_readme_explains_every_field_that_does_not_just_pass() -> None:
    readme = Path(serve_app.__file__).with_name("README.md").read_text()
    special = {
        name for rules in ALLOW_LIST.values() for name, rule in rules.items() if rule != Rule.PASS
    }
    assert {name for name in special if f"`{name}`" not in readme} == set()


def test_a_field_without_a_rule_is_dropped() -> None:
    assert allow(ApiRoute.CHAT, {"model": "m", "made_up": 1}).body == {"model": "m"}


def test_a_refused_field_may_ask_for_nothing() -> None:
    """Clients send defaults, such as `priority: 0`."""
    assert allow(ApiRoute.CHAT, {"priority": 0, "kv_transfer_params": None}).body == {}


@pytest.mark.parametrize("name", [n for n, rule in STEERING.items() if rule is Rule.REFUSE])
def test_a_refusal_names_the_field(name: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        allow(ApiRoute.CHAT, {name: {"a": 1}})
    assert refusal.value.param == name


def test_a_salt_is_set_apart_for_mixing() -> None:
    allowed = allow(ApiRoute.COMPLETIONS, {"cache_salt": "x", "prompt": "a"})
    assert (allowed.client_salt, allowed.body) == ("x", {"prompt": "a"})


@pytest.mark.parametrize("body", [{}, {"store": None}, {"store": False}])
def test_responses_are_marked_as_not_stored(body: dict[str, object]) -> None:
    assert allow(ApiRoute.RESPONSES, body).body["store"] is False


def test_storing_a_response_is_refused() -> None:
    with pytest.raises(InvalidRequest):
        allow(ApiRoute.RESPONSES, {"store": True})


@pytest.mark.parametrize(
    ("route", "name"),
    [
        (ApiRoute.CHAT, "echo"),
        (ApiRoute.CHAT, "return_prompt_text"),
        (ApiRoute.COMPLETIONS, "echo"),
        (ApiRoute.COMPLETIONS, "suffix"),
    ],
)
def test_fields_that_need_the_text_make_the_engine_render(route: ApiRoute, name: str) -> None:
    assert allow(route, {name: "yes"}).needs_render
    assert not allow(route, {name: None}).needs_render
