"""What a request's session is, according to `session_from`."""

import pytest
from starlette.datastructures import Headers

from serve_app.api.generate import MAX_SESSION_CHARACTERS, client_hints

HEADERS = Headers({"X-Session-Id": "talk", "X-Account": "acme"})


@pytest.mark.parametrize(
    ("session_from", "expected"),
    [
        (["x-session-id"], "talk"),
        (["X-Account", "x-session-id"], "acme"),
        (["x-missing", "user"], "ann"),
        (["x-missing"], None),
        ([], None),
    ],
)
def test_the_first_source_that_a_request_has_is_its_session(
    session_from: list[str], expected: str | None
) -> None:
    assert client_hints(HEADERS, "ann", session_from).session_hint == expected


def test_an_empty_word_is_no_session() -> None:
    hints = client_hints(Headers({"x-session-id": ""}), "", ["x-session-id", "user"])
    assert hints.session_hint is None


def test_a_session_is_cut_to_its_length() -> None:
    hints = client_hints(HEADERS, "a" * 1000, ["user"])
    assert hints.session_hint == "a" * MAX_SESSION_CHARACTERS
