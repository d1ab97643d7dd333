"""A KV store's way to the context manager: asks what contexts claim, and makes no manager."""

import asyncio

import ray
from ray.actor import ActorHandle

from router.contexts.wire import Claimed, Claims, Flight, decode_landing, encode
from router.core.errors import ContextsUnavailable
from router.serve.context_generations import find_contexts

CALL_LIMIT_S = 10.0


class ClaimsQuestions:
    """Of one application."""

    def __init__(self, application: str) -> None:
        self._application = application
        self._actor: ActorHandle | None = None

    async def ask(self, model: str, hashes: bytes) -> Claimed:
        """Raises `ContextsUnavailable`: then nothing is known, and all is to stay as it is."""
        try:
            async with asyncio.timeout(CALL_LIMIT_S):
                return await self._ask(encode(Flight([Claims(model, hashes)])))
        except (ray.exceptions.RayError, TimeoutError) as error:
            self._actor = None
            raise ContextsUnavailable("The context manager does not answer.") from error

    async def _ask(self, flight: bytes) -> Claimed:
        if self._actor is None:
            self._actor = await asyncio.to_thread(find_contexts, self._application)
        if self._actor is None:
            raise ContextsUnavailable("There is no context manager.")
        landing = decode_landing(await self._actor.exchange.remote(flight))
        if landing.replies and isinstance(landing.replies[0], Claimed):
            return landing.replies[0]
        self._actor = None
        raise ContextsUnavailable(landing.refusal or "The context manager has moved.")
