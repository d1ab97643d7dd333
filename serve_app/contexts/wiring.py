"""The context manager's client for one ingress, of the configuration's section."""

from router.configuration import ContextsConfig
from router.contexts.settings import ContextSettings
from router.serve.context_client import ContextClient
from router.serve.context_connection import NamedContexts

_NOT_THE_MANAGERS = frozenset(
    {"enabled", "default_ttl_s", "min_ttl_s", "max_ttl_s", "save_timeout_s"}
)


def context_client(application: str, config: ContextsConfig) -> ContextClient:
    """Does not wait for the manager, which its first call makes where there is none."""
    bounds = config.model_dump(exclude=set(_NOT_THE_MANAGERS))
    return ContextClient(NamedContexts(ContextSettings(application=application, **bounds)))
