"""The table from errors to HTTP."""

import inspect
import json

import pytest

from router.core import errors
from router.core.errors import (
    EngineDead,
    NoReplica,
    NotFound,
    RequestRejected,
    Unauthenticated,
    Unavailable,
    WarmpathError,
)
from serve_app.errors import (
    MAX_MESSAGE_CHARACTERS,
    TABLE,
    error_body,
    error_event,
    error_response,
    http_error,
)

TREE = [
    kind
    for _, kind in inspect.getmembers(errors, inspect.isclass)
    if issubclass(kind, WarmpathError)
]


@pytest.mark.parametrize("kind", TREE, ids=lambda kind: kind.__name__)
def test_every_error_of_the_tree_has_its_row(kind: type[WarmpathError]) -> None:
    assert kind in TABLE


def test_a_client_fault_is_a_4xx_and_a_server_fault_a_5xx() -> None:
    for kind, row in TABLE.items():
        is_client = issubclass(kind, errors.RequestError)
        assert (400 <= row.status < 500) is is_client
        assert (row.kind == "invalid_request_error") is is_client


def test_an_engines_refusal_keeps_its_own_status() -> None:
    assert http_error(RequestRejected("no", status=404)).status == 404


@pytest.mark.parametrize("status", [200, 302, 500])
def test_an_engines_refusal_is_always_a_client_error(status: int) -> None:
    assert http_error(RequestRejected("no", status=status)).status == 400


def test_the_shape_is_openais() -> None:
    body = error_body(NotFound("gone", param="model", code="model_not_found"))
    assert body == {
        "error": {
            "message": "gone",
            "type": "invalid_request_error",
            "param": "model",
            "code": "model_not_found",
        }
    }


def test_a_long_message_is_cut() -> None:
    error = error_body(EngineDead("x" * 10_000))["error"]
    assert isinstance(error, dict)
    assert len(error["message"]) == MAX_MESSAGE_CHARACTERS


def test_an_empty_message_is_replaced() -> None:
    error = error_body(RequestRejected(""))["error"]
    assert isinstance(error, dict) and error["message"]


@pytest.mark.parametrize("kind", [Unavailable, NoReplica])
def test_trying_later_comes_with_the_seconds_to_wait(kind: type[Unavailable]) -> None:
    response = error_response(kind("later", retry_after_s=7))
    assert (response.status_code, response.headers["retry-after"]) == (503, "7")


def test_a_missing_key_says_how_to_authenticate() -> None:
    response = error_response(Unauthenticated("who?"))
    assert (response.status_code, response.headers["www-authenticate"]) == (401, "Bearer")


def test_an_error_in_a_stream_is_one_event() -> None:
    event = error_event(EngineDead("gone\n\ndata: fake"))
    assert event.count(b"\n\n") == 1 and event.endswith(b"\n\n")
    assert json.loads(event.removeprefix(b"data: ")) == error_body(EngineDead("gone\n\ndata: fake"))
