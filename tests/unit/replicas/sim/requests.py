"""Requests as the ingress would hand them over."""

import json
from array import array
from typing import Any

from replicas.engines.protocol import EngineRequest, Route


def make_request(
    *prompts: list[int], route: Route = Route.COMPLETIONS, is_stream: bool = False, **fields: Any
) -> EngineRequest:
    """The body is `fields` alone."""
    return EngineRequest(
        request_id="1",
        route=route,
        body=json.dumps(fields).encode(),
        prompts=tuple(array("I", prompt).tobytes() for prompt in prompts),
        cache_salt=None,
        is_stream=is_stream,
    )
