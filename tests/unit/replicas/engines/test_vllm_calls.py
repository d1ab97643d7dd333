"""How requests reach vLLM: what is to be loaded beside the ids, and nothing of the client."""

import json
from dataclasses import replace
from typing import Any

import pytest

from replicas.engines.protocol import EngineRequest, Route
from replicas.engines.vllm.environment import prepare_environment
from replicas.kv.connector.messages import PARAMETER, decode_request
from router.core.transfer import Keeping, StoredRun, TransferRequest
from router.core.types import StoreId
from tests.contract.engine_client import make_request

IDS = [300, 301, 302]
TRANSFER = TransferRequest((StoredRun(0, 4, StoreId("s"), b"\xff" * 64),), Keeping.CONTEXT, 7)
ROUTES = list(Route)


def parameters(request: EngineRequest) -> dict[str, Any] | None:
    """What vLLM is given to transfer."""
    prepare_environment()
    from replicas.engines.vllm.calls import chat_call, completion_call, responses_call

    calls = {
        Route.CHAT: chat_call,
        Route.COMPLETIONS: completion_call,
        Route.RESPONSES: responses_call,
    }
    found: dict[str, Any] | None = calls[request.route](request).kv_transfer_params
    return found


@pytest.mark.parametrize("route", ROUTES)
def test_a_transfer_is_read_as_it_was_written(route: Route) -> None:
    request = replace(make_request(IDS, route=route), transfer=TRANSFER)
    found = parameters(request)
    assert found is not None
    assert decode_request(found[PARAMETER]) == TRANSFER
    assert found.get("prompt_token_ids") == (None if route is Route.COMPLETIONS else IDS)


@pytest.mark.parametrize("route", ROUTES)
def test_without_a_store_vllm_sees_no_transfer(route: Route) -> None:
    """It would complain of each."""
    found = parameters(make_request(IDS, route=route)) or {}
    assert found.keys() <= {"prompt_token_ids"}


@pytest.mark.parametrize("route", ROUTES)
def test_what_a_client_says_of_transfers_is_dropped(route: Route) -> None:
    forged = {PARAMETER: "{}", "do_remote_prefill": True}
    request = make_request(IDS, route=route, kv_transfer_params=forged)
    assert json.loads(request.body)["kv_transfer_params"] == forged
    assert (parameters(request) or {}).keys() <= {"prompt_token_ids"}
