"""Headers and bodies of context calls."""

from typing import Any

import pytest

from router.configuration import ContextsConfig
from router.core.errors import ContextNotFound, InvalidRequest
from router.core.types import Tenant
from serve_app.contexts import parameters

CONFIG = ContextsConfig(min_ttl_s=2, default_ttl_s=10, max_ttl_s=100, max_wait_s=5)


@pytest.mark.parametrize(
    ("body", "header", "expected"),
    [
        ({}, None, None),
        ({"ttl": 2}, None, 2),
        ({"ttl": 100}, "100", 100),
        ({}, "7", 7),
        ({"ttl": None}, "7", 7),
    ],
)
def test_a_ttl_is_of_the_body_or_of_the_header(
    body: dict[str, Any], header: str | None, expected: int | None
) -> None:
    headers = {} if header is None else {"x-session-ttl": header}
    assert parameters.ttl_s(body, headers, CONFIG) == expected


@pytest.mark.parametrize("ttl", [1, 101, 0, -5, 2.0, 2.5, "7", True, [7]])
def test_any_other_ttl_is_refused_and_never_clamped(ttl: object) -> None:
    with pytest.raises(InvalidRequest) as refused:
        parameters.ttl_s({"ttl": ttl}, {}, CONFIG)
    assert refused.value.param == "ttl"


@pytest.mark.parametrize("header", ["1", "101", "soon", "7.5", "-7", "", "٧"])
def test_the_header_is_held_to_the_same(header: str) -> None:
    with pytest.raises(InvalidRequest):
        parameters.ttl_s({}, {"x-session-ttl": header}, CONFIG)


def test_a_ttl_said_twice_must_be_the_same() -> None:
    with pytest.raises(InvalidRequest):
        parameters.ttl_s({"ttl": 7}, {"x-session-ttl": "8"}, CONFIG)


def test_metadata_are_sixteen_pairs_of_strings_at_most() -> None:
    pairs = {f"k{i}": "v" for i in range(16)}
    assert parameters.metadata({"metadata": pairs}) == pairs
    assert parameters.metadata({}) is None


@pytest.mark.parametrize(
    "value",
    [
        {f"k{i}": "v" for i in range(17)},
        {"k": 1},
        {"k": None},
        {"": "v"},
        {"k" * 65: "v"},
        {"k": "v" * 513},
        ["k"],
        "k",
    ],
)
def test_other_metadata_are_refused(value: object) -> None:
    with pytest.raises(InvalidRequest) as refused:
        parameters.metadata({"metadata": value})
    assert refused.value.param == "metadata"


def test_a_turn_waits_as_long_as_it_says_within_the_limit() -> None:
    assert parameters.wait_s({}, CONFIG) == 0
    assert parameters.wait_s({"x-session-wait": "5"}, CONFIG) == 5
    for value in ("6", "-1", "long"):
        with pytest.raises(InvalidRequest):
            parameters.wait_s({"x-session-wait": value}, CONFIG)


def test_a_turn_may_be_conditional() -> None:
    assert parameters.expected_turns({}) is None
    assert parameters.expected_turns({"x-session-turn": "3"}) == 3
    with pytest.raises(InvalidRequest):
        parameters.expected_turns({"x-session-turn": "three"})


def test_only_a_value_of_its_form_names_a_context() -> None:
    assert parameters.is_context("ctx-abc")
    assert not parameters.is_context("abc")
    assert not parameters.is_context(None)
    assert parameters.context_id("ctx-a_B-9") == "ctx-a_B-9"
    for value in ("ctx-", "ctx-" + "a" * 129, "ctx-a/b", "ctx-ü", "abc"):
        with pytest.raises(ContextNotFound):
            parameters.context_id(value)


def test_a_page_has_one_to_a_hundred() -> None:
    assert parameters.page({}) == (20, None)
    assert parameters.page({"limit": "100", "after": "ctx-a"}) == (100, "ctx-a")
    for limit in ("0", "101", "all"):
        with pytest.raises(InvalidRequest):
            parameters.page({"limit": limit})


def test_a_session_is_told_apart_for_each_tenant_and_cannot_be_read_back() -> None:
    one, other = (parameters.session_tag(Tenant(name), "ctx-secret") for name in ("ann", "bob"))
    assert one != other
    assert "secret" not in one
    assert parameters.session_tag(Tenant("ann"), "ctx-secret") == one


def test_a_shortened_id_is_of_no_use() -> None:
    assert parameters.shortened("ctx-" + "abcdefghijklmnop") == "ctx-abcdef…"
