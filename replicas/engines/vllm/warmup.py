"""The first requests of an engine, which compile and load what the first user would wait for."""

import json
from collections.abc import Iterator

import numpy as np

from replicas.engines.protocol import EngineRequest, Route

_TOKENS = 8
"""Far below a block with its answer, so that warming up leaves no block and no KV event."""


def warmup_requests(model: str) -> Iterator[EngineRequest]:
    """One of each of the two common routes, streamed, for the code paths behind them."""
    prompt = np.arange(10, 10 + _TOKENS, dtype="<u4").tobytes()
    chat = {"messages": [{"role": "user", "content": ""}], "max_tokens": 2}
    for route, fields in ((Route.CHAT, chat), (Route.COMPLETIONS, {"max_tokens": 2})):
        yield EngineRequest(
            request_id=f"warmup-{route}",
            route=route,
            body=json.dumps({"model": model, **fields}).encode(),
            prompts=(prompt,),
            cache_salt=None,
            is_stream=True,
        )
