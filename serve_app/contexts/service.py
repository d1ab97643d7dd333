"""All that the HTTP face needs of contexts, wired for one ingress."""

from dataclasses import dataclass

from router.configuration import ContextsConfig
from router.serve.context_client import ContextClient
from serve_app.contexts.creation import Creation
from serve_app.contexts.serving import Serving
from serve_app.contexts.stored import StoredKV
from serve_app.contexts.turns import Turns


@dataclass(frozen=True, slots=True)
class Contexts:
    client: ContextClient
    config: ContextsConfig
    serving: Serving

    @property
    def creation(self) -> Creation:
        return Creation(self.client, self.config, self.serving)

    @property
    def stored(self) -> StoredKV:
        return self.serving.stored

    @property
    def turns(self) -> Turns:
        return Turns(self.client, self.config, self.serving)
