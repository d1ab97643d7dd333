"""Which actor is the block index of an application and model: names, successors, removal.

A detached actor outlives the code that made it. The same protocol with other settings is
configured; another protocol gets a successor under the next generation's name, which takes over
what the old one knows and stops it. All calls here block: for wiring and threads only.
"""

from dataclasses import dataclass
from urllib.parse import quote

import ray
from ray.actor import ActorHandle
from ray.util import list_named_actors

from router.core.errors import IndexUnavailable
from router.serve.index_actor import BlockIndexActor
from router.serve.index_settings import IndexSettings
from router.serve.wire import PROTOCOL

NAMESPACE = "warmpath"
CALL_LIMIT_S = 30.0
_MAX_PENDING_CALLS = 64
"""Of one caller. A process has at most a few flights and batches in the air."""


@dataclass(frozen=True, slots=True)
class IndexName:
    """The block index of one application and model, in one generation."""

    application: str
    model: str
    generation: int

    @property
    def actor_name(self) -> str:
        return f"{_family(self.application, self.model)}{self.generation}"


def newest(application: str, model: str) -> IndexName | None:
    """The latest generation that exists; None where the application has no index."""
    found = generations(application, model)
    return IndexName(application, model, found[-1]) if found else None


def generations(application: str, model: str) -> list[int]:
    """All generations that exist, ascending. O(named actors of the cluster)."""
    family = _family(application, model)
    names = [
        actor["name"]
        for actor in list_named_actors(all_namespaces=True)
        if actor["namespace"] == NAMESPACE
    ]
    suffixes = [name.removeprefix(family) for name in names if name.startswith(family)]
    return sorted(int(suffix) for suffix in suffixes if suffix.isdecimal())


def find_index(application: str, model: str) -> ActorHandle | None:
    """The actor that answers for the index; None where there is none."""
    name = newest(application, model)
    return None if name is None else named(name.actor_name)


def named(actor_name: str) -> ActorHandle | None:
    try:
        return ray.get_actor(actor_name, namespace=NAMESPACE)
    except ValueError:
        return None


def open_index(application: str, model: str, settings: IndexSettings) -> ActorHandle:
    """The index, made, configured or succeeded as needed. Idempotent, from any process.

    Raises `IndexUnavailable` where the actor does not answer.
    """
    name = newest(application, model) or IndexName(application, model, 1)
    actor = _create(name, settings)
    try:
        protocol, digest = ray.get(actor.hello.remote(PROTOCOL), timeout=CALL_LIMIT_S)
        if protocol != PROTOCOL:
            return _succeed(name, actor, settings)
        if digest != settings.digest:
            ray.get(actor.configure.remote(settings.packed()), timeout=CALL_LIMIT_S)
    except ray.exceptions.RayError as error:
        raise IndexUnavailable(f"the block index {name.actor_name} does not answer") from error
    return actor


def remove_index(application: str, model: str) -> int:
    """Stops the index of an application that is gone, in all generations; returns how many."""
    removed = 0
    for generation in generations(application, model):
        actor = named(IndexName(application, model, generation).actor_name)
        if actor is not None:
            ray.kill(actor, no_restart=True)
            removed += 1
    return removed


def _create(name: IndexName, settings: IndexSettings) -> ActorHandle:
    """Two processes at once get the same actor."""
    kind = ray.remote(BlockIndexActor)
    return kind.options(
        name=name.actor_name,
        namespace=NAMESPACE,
        lifetime="detached",
        get_if_exists=True,
        num_cpus=0,
        max_restarts=-1,
        max_task_retries=0,
        max_pending_calls=_MAX_PENDING_CALLS,
        enable_task_events=False,
    ).remote(settings.packed())


def _succeed(old: IndexName, predecessor: ActorHandle, settings: IndexSettings) -> ActorHandle:
    name = IndexName(old.application, old.model, old.generation + 1)
    successor = _create(name, settings)
    ray.get(successor.inherit.remote(predecessor, name.actor_name), timeout=CALL_LIMIT_S)
    return successor


def _family(application: str, model: str) -> str:
    """Quoted, so that no model's name can look like another's with a generation."""
    return f"block-index/{quote(application, safe='')}/{quote(model, safe='')}/"
