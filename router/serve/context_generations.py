"""Which actor keeps the contexts of an application, and on which node; see `actor_family`."""

from urllib.parse import quote

import ray
from ray.actor import ActorHandle

from router.contexts.settings import ContextSettings
from router.contexts.wire import PROTOCOL
from router.core.errors import ContextsUnavailable
from router.serve.actor_family import ActorFamily
from router.serve.context_actor import ContextManager

_MAX_PENDING_CALLS = 1024
"""Of one caller. Each turn that waits for another's end has a call of its own."""


def open_contexts(settings: ContextSettings) -> ActorHandle:
    """The manager, made, configured or succeeded as needed. Idempotent, from any process. Blocks.

    A journal in a file is one of the head node's. Raises `ContextsUnavailable` where the actor does
    not answer.
    """
    family = _family(settings.application, {"max_concurrency": 10_000})
    try:
        return family.open(settings.packed(), settings.digest)
    except ray.exceptions.RayError as error:
        raise ContextsUnavailable("The context manager does not answer.") from error


def find_contexts(application: str) -> ActorHandle | None:
    """The actor that answers for the application's contexts; None where there is none."""
    return _family(application).find()


def context_generations(application: str) -> list[int]:
    return _family(application).generations()


def remove_contexts(application: str) -> int:
    """Stops the manager of an application that is gone; its journal stays. Returns how many."""
    return _family(application).remove()


def _family(application: str, options: dict[str, object] | None = None) -> ActorFamily:
    prefix = f"contexts/{quote(application, safe='')}/"
    return ActorFamily(prefix, ContextManager, PROTOCOL, _MAX_PENDING_CALLS, options or {})
