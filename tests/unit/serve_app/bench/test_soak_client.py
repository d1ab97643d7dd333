"""Which answers a conversation under faults tries again, and which are findings."""

import json

import httpx
import pytest

from serve_app.bench.soak_client import Lost, SoakClient, Stuck, Surprising, Tally, TryAgain


def client_of(*answers: tuple[int, str | None]) -> SoakClient:
    """Of an application that gives these statuses and codes, one after the other."""
    left = list(answers)

    def answer(_: httpx.Request) -> httpx.Response:
        status, code = left.pop(0)
        return httpx.Response(status, json={"error": {"code": code}} if code else {})

    http = httpx.AsyncClient(transport=httpx.MockTransport(answer), base_url="http://a")
    return SoakClient(http, Tally(), stuck_after_s=0)


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (503, "contexts_unavailable", TryAgain),
        (502, None, TryAgain),
        (500, "engine_error", TryAgain),
        (409, "context_busy", TryAgain),
        (404, "context_not_found", Lost),
        (410, "context_expired", Lost),
        (500, None, Surprising),
        (400, "context_kind", Surprising),
    ],
)
async def test_an_answer_is_tried_again_or_a_finding(
    status: int, code: str | None, kind: type[Exception]
) -> None:
    client = client_of((status, code))
    with pytest.raises(kind):
        await client.get("ctx-a")
    assert client.tally.refusals == {f"{status} {code}": 1}


async def test_what_never_succeeds_is_stuck() -> None:
    client = client_of((503, "overloaded"))
    with pytest.raises(Stuck):
        await client.retried("turn", lambda _: client.get("ctx-a"))


def test_a_stream_that_breaks_off_is_tried_again() -> None:
    client = client_of()
    begun = {"choices": [{"text": " a", "finish_reason": None, "token_ids": [1]}]}
    ended = {"choices": [{"text": " b", "finish_reason": "length", "token_ids": [2]}]}
    lines = [f"data: {json.dumps(event)}\n\n".encode() for event in (begun, ended)]
    with pytest.raises(TryAgain):
        client.choice(lines[0], is_stream=True)
    whole = client.choice(b"".join(lines), is_stream=True)
    assert (whole["text"], whole["token_ids"]) == (" a b", [1, 2])
