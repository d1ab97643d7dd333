"""Named detached actors with generations: found by name, configured, succeeded, removed.

A detached actor outlives the code that made it. The same protocol with other settings is
configured; another protocol gets a successor under the next generation's name, which takes over
what the old one knows and stops it. All live on the head node, the one that stays. All calls here
block: for wiring and threads only.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import ray
from ray.actor import ActorHandle
from ray.util import list_named_actors

NAMESPACE = "warmpath"
CALL_LIMIT_S = 30.0

_ON_HEAD_NODE = {"node:__internal_head__": 0.001}
"""Any other node would stay as long as the actor does: Ray's autoscaler removes none with an actor,
not even with one that needs no CPU. Ray heeds no soft affinity of an actor that asks for nothing,
and a hard one would not outlive the head's replacement."""


def named(actor_name: str) -> ActorHandle | None:
    try:
        return ray.get_actor(actor_name, namespace=NAMESPACE)
    except ValueError:
        return None


@dataclass(frozen=True, slots=True)
class ActorFamily:
    """All generations of one actor; names are `prefix` and a number.

    `kind` is a plain class made with packed settings, with `hello`, `configure` and `inherit`.
    """

    prefix: str
    kind: type
    protocol: int
    max_pending_calls: int = 64
    options: Mapping[str, object] = field(default_factory=dict)

    def actor_name(self, generation: int) -> str:
        return f"{self.prefix}{generation}"

    def generations(self) -> list[int]:
        """All generations that exist, ascending. O(named actors of the cluster)."""
        names = [
            actor["name"]
            for actor in list_named_actors(all_namespaces=True)
            if actor["namespace"] == NAMESPACE
        ]
        suffixes = [
            name.removeprefix(self.prefix) for name in names if name.startswith(self.prefix)
        ]
        return sorted(int(suffix) for suffix in suffixes if suffix.isdecimal())

    def find(self) -> ActorHandle | None:
        """The actor of the latest generation; None where there is none."""
        found = self.generations()
        return named(self.actor_name(found[-1])) if found else None

    def open(self, settings: bytes, digest: str) -> ActorHandle:
        """The actor, made, configured or succeeded as needed. Idempotent, from any process.

        Raises Ray's errors where it does not answer.
        """
        generation = next(reversed(self.generations()), 1)
        actor = self._create(generation, settings)
        protocol, present = ray.get(actor.hello.remote(self.protocol), timeout=CALL_LIMIT_S)
        if protocol != self.protocol:
            return self._succeed(generation, actor, settings)
        if present != digest:
            ray.get(actor.configure.remote(settings), timeout=CALL_LIMIT_S)
        return actor

    def remove(self) -> int:
        """Stops all generations; returns how many."""
        removed = 0
        for generation in self.generations():
            actor = named(self.actor_name(generation))
            if actor is not None:
                ray.kill(actor, no_restart=True)
                removed += 1
        return removed

    def _create(self, generation: int, settings: bytes) -> ActorHandle:
        """Two processes at once get the same actor."""
        return (
            ray.remote(self.kind)
            .options(
                name=self.actor_name(generation),
                namespace=NAMESPACE,
                lifetime="detached",
                get_if_exists=True,
                num_cpus=0,
                resources=_ON_HEAD_NODE,
                max_restarts=-1,
                max_task_retries=0,
                max_pending_calls=self.max_pending_calls,
                enable_task_events=False,
                **self.options,
            )
            .remote(settings)
        )

    def _succeed(self, generation: int, predecessor: ActorHandle, settings: bytes) -> ActorHandle:
        name = self.actor_name(generation + 1)
        successor = self._create(generation + 1, settings)
        ray.get(successor.inherit.remote(predecessor, name), timeout=CALL_LIMIT_S)
        return successor
