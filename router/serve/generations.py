"""Which actor is the block index of an application and model; see `actor_family`."""

from dataclasses import dataclass
from urllib.parse import quote

import ray
from ray.actor import ActorHandle

from router.core.errors import IndexUnavailable
from router.serve.actor_family import NAMESPACE as NAMESPACE
from router.serve.actor_family import ActorFamily
from router.serve.actor_family import named as named
from router.serve.index_actor import BlockIndexActor
from router.serve.index_settings import IndexSettings
from router.serve.wire import PROTOCOL


@dataclass(frozen=True, slots=True)
class IndexName:
    """The block index of one application and model, in one generation."""

    application: str
    model: str
    generation: int

    @property
    def actor_name(self) -> str:
        return _family(self.application, self.model).actor_name(self.generation)


def newest(application: str, model: str) -> IndexName | None:
    """The latest generation that exists; None where the application has no index."""
    found = generations(application, model)
    return IndexName(application, model, found[-1]) if found else None


def generations(application: str, model: str) -> list[int]:
    """All generations that exist, ascending. O(named actors of the cluster)."""
    return _family(application, model).generations()


def find_index(application: str, model: str) -> ActorHandle | None:
    """The actor that answers for the index; None where there is none."""
    return _family(application, model).find()


def open_index(application: str, model: str, settings: IndexSettings) -> ActorHandle:
    """The index, made, configured or succeeded as needed. Idempotent, from any process.

    Raises `IndexUnavailable` where the actor does not answer.
    """
    try:
        return _family(application, model).open(settings.packed(), settings.digest)
    except ray.exceptions.RayError as error:
        raise IndexUnavailable(f"the block index of {model} does not answer") from error


def remove_index(application: str, model: str) -> int:
    """Stops the index of an application that is gone, in all generations; returns how many."""
    return _family(application, model).remove()


def _family(application: str, model: str) -> ActorFamily:
    """Quoted, so that no model's name can look like another's with a generation."""
    prefix = f"block-index/{quote(application, safe='')}/{quote(model, safe='')}/"
    return ActorFamily(prefix, BlockIndexActor, PROTOCOL)
