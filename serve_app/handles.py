"""Calls to replicas through Serve, with its many errors turned into ours."""

import asyncio
from collections.abc import AsyncGenerator

from ray.exceptions import RayActorError, RayTaskError
from ray.serve.exceptions import (
    BackPressureError,
    DeploymentUnavailableError,
    ReplicaUnavailableError,
)
from ray.serve.handle import DeploymentHandle

from replicas.engines.protocol import EngineRequest
from replicas.settlement import Settlement
from router.core.errors import EngineDead, NoReplica, Unavailable, WarmpathError
from serve_app.errors import CountFault, unexpected

GRPC_SAFE_BYTES = 3 * 1024 * 1024
"""Serve's gRPC handles refuse arguments of more than 4 MiB; larger ones go through the actor."""

_LOST = (RayActorError, ReplicaUnavailableError)
"""A dead or unreachable replica, over either of Serve's transports."""


class ReplicaCalls:
    """The replicas of one model, behind one deployment handle."""

    def __init__(self, handle: DeploymentHandle, retry_after_s: int, count: CountFault) -> None:
        self._handle = handle.options(stream=True)
        self._actor_handle = handle.options(stream=True, _by_reference=True)
        self._retry_after_s = retry_after_s
        self._count = count

    async def send(self, request: EngineRequest) -> AsyncGenerator[bytes | Settlement, None]:
        """Yields the answer of whichever replica Serve chooses; raises only `WarmpathError`s.

        Closing it cancels the call, wherever it is.
        """
        size = len(request.body) + sum(map(len, request.prompts))
        handle = self._actor_handle if size > GRPC_SAFE_BYTES else self._handle
        response = handle.generate.remote(request)
        try:
            async for item in response:
                yield item
        except (asyncio.CancelledError, GeneratorExit):
            response.cancel()
            raise
        except Exception as error:
            raise self._translate(error) from error

    def _translate(self, error: Exception) -> WarmpathError:
        cause = error.cause if isinstance(error, RayTaskError) else error
        if isinstance(cause, WarmpathError):
            return cause
        if isinstance(cause, BackPressureError):
            self._count("queue_full")
            return Unavailable("Too many requests are waiting.", retry_after_s=self._retry_after_s)
        if isinstance(cause, DeploymentUnavailableError):
            self._count("deployment_unavailable")
            return NoReplica("The model is not available.", retry_after_s=self._retry_after_s)
        if isinstance(cause, _LOST):
            return EngineDead("The replica died while it answered.")
        return unexpected(error, self._count, "calling a replica")
