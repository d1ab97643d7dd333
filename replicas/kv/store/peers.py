"""Which KV stores an application has."""

from ray.util import list_named_actors

from replicas.kv.store.settings import family_prefix
from router.core.types import StoreId
from router.serve.actor_family import NAMESPACE


def store_names(application: str) -> list[StoreId]:
    """On all nodes, under all settings. O(named actors of the cluster); blocks."""
    prefix = family_prefix(application)
    return [
        StoreId(actor["name"])
        for actor in list_named_actors(all_namespaces=True)
        if actor["namespace"] == NAMESPACE and actor["name"].startswith(prefix)
    ]
