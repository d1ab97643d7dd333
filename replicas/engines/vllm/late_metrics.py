"""vLLM's metrics through Ray, off the way of the tokens that they count."""

import asyncio
from functools import partial
from typing import Any

from vllm.v1.metrics.ray_wrappers import RayPrometheusStatLogger


class LateRayMetrics(RayPrometheusStatLogger):
    """Records each step once its outputs have been passed on.

    vLLM records between handing outputs to their requests and letting the requests run; dozens of
    Ray's metrics would be set before a token goes its way.
    """

    def record(self, *args: Any, **kwargs: Any) -> None:
        record = partial(super().record, *args, **kwargs)
        asyncio.get_running_loop().call_soon(record)
