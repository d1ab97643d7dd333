"""The HTTP front as a Serve deployment: any number of replicas, no state that lasts."""

import logging
import os
from collections.abc import Mapping

from fastapi import FastAPI
from ray import serve
from ray.serve.handle import DeploymentHandle
from ray.util.metrics import Counter

from router.configuration import (
    AuthConfig,
    ContextsConfig,
    IndexConfig,
    IngressConfig,
    ModelConfig,
)
from router.core.errors import ConfigurationError
from router.kv_store_config import KvStoreConfig
from router.serve.context_client import ContextClient
from router.serve.index_connection import NamedIndex
from serve_app.admission import Admission
from serve_app.api.application import build_api
from serve_app.auth import check_auth, fingerprint
from serve_app.contexts.claims import ObjectClaims
from serve_app.contexts.prompts import TurnRenderer
from serve_app.contexts.service import Contexts
from serve_app.contexts.serving import Serving
from serve_app.contexts.stored import StoredKV
from serve_app.contexts.wiring import context_client
from serve_app.dispatch import Dispatcher
from serve_app.errors import CountFault
from serve_app.front import Front
from serve_app.handles import ReplicaCalls
from serve_app.model_links import ModelLinks
from serve_app.observe.observer import Observer
from serve_app.observe.ray_meters import RayMeters
from serve_app.render_loop import RenderLoop
from serve_app.salts import CacheSalts
from serve_app.tuning import Tuning, parse_tuning

logger = logging.getLogger(__name__)


class Ingress:
    """Authenticates, renders, decides and dispatches. Calls no model while it starts.

    `secret_mark` is the fingerprint of the server secret that the builder saw; an ingress that
    reads another secret would salt the same prompts differently, so it refuses to start.
    """

    def __init__(
        self,
        models: list[ModelConfig],
        config: IngressConfig,
        auth: AuthConfig,
        index: IndexConfig,
        contexts: ContextsConfig,
        kv_store: KvStoreConfig,
        secret_mark: str | None,
        handles: dict[str, DeploymentHandle],
    ) -> None:
        self._render_loop = RenderLoop()
        self._models = models
        self._config = config
        self._index = index
        self._contexts_config = contexts
        self._kv_store = kv_store
        self._handles = handles
        self._tuning = Tuning()
        self._links: ModelLinks | None = None
        self._contexts: ContextClient | None = None
        self._is_tuned = False
        self._keys, self._secret = check_auth(auth, os.environ)
        if (fingerprint(self._secret) if self._secret else None) != secret_mark:
            raise ConfigurationError("auth.secret_file", "differs from the secret at deployment")

    async def reconfigure(self, user_config: object) -> None:
        """Serve's hook for `user_config`, at the start and for each change; see `RoutingConfig`.

        A wrong one ends the start. A running ingress refuses it and goes on with what it has.
        """
        try:
            tuned = parse_tuning(user_config)
        except ConfigurationError as error:
            if not self._is_tuned:
                raise
            logger.error("the change of user_config is refused: %s", error.message)
            return
        self._is_tuned = True
        self._tuning.current = tuned
        if self._links is not None:
            self._links.adjust(tuned)

    async def __serve_build_asgi_app__(self) -> FastAPI:
        """Serve's hook after construction: loads the renderers, which takes seconds."""
        count = _fault_counter()
        meters = RayMeters()
        observer = Observer(meters, self._tuning, self._secret)
        links = self._links = ModelLinks(
            serve.get_replica_context().app_name,
            self._index,
            self._tuning,
            meters,
            count,
            keeps_kv=self._kv_store.enabled,
        )
        routers = {
            model.name: links.open(model, self._handles[model.name]) for model in self._models
        }
        loading = _load(self._models, self._config.render_workers, count)
        renderers = await self._render_loop.run(loading)
        admission = Admission(
            renderers,
            CacheSalts(self._secret),
            links.block_size,
            count,
        )
        dispatchers = {
            name: Dispatcher(
                router=routers[name],
                send=ReplicaCalls(handle, self._config.retry_after_s, count).send,
                finish=observer.finish,
                first_byte_timeout_s=self._config.first_token_timeout_s,
                retry_after_s=self._config.retry_after_s,
                count=count,
            )
            for name, handle in self._handles.items()
        }
        front = Front(
            keys=self._keys,
            admission=admission,
            render_loop=self._render_loop,
            renderers=renderers,
            dispatchers=dispatchers,
            finish=observer.finish,
            tuning=self._tuning,
            max_body_bytes=self._config.max_body_bytes,
            count=count,
            contexts=self._open_contexts(admission, renderers, dispatchers, links),
        )
        return build_api(front)

    def _open_contexts(
        self,
        admission: Admission,
        renderers: Mapping[str, TurnRenderer | None],
        dispatchers: Mapping[str, Dispatcher],
        links: ModelLinks,
    ) -> Contexts | None:
        config = self._contexts_config
        if not config.enabled:
            return None
        application, kv_store = serve.get_replica_context().app_name, self._kv_store
        claims = ObjectClaims(kv_store.object_blocks if kv_store.enabled else 0)
        storing = [model.name for model in self._models if model.engine == "vllm"]
        names = storing if kv_store.enabled else []
        indexes = {name: NamedIndex(application, name) for name in names}
        stored = StoredKV(indexes, links.block_size)
        serving = Serving(admission, self._render_loop, renderers, dispatchers, claims, stored)
        self._contexts = context_client(application, config)
        self._contexts.open()
        return Contexts(self._contexts, config, serving)

    async def __del__(self) -> None:
        """Serve awaits this at the end: what is booked is released at once."""
        if self._links is not None:
            await self._links.close()
        if self._contexts is not None:
            await self._contexts.close()
        self._render_loop.close()


async def _load(
    models: list[ModelConfig], workers: int, count: CountFault
) -> Mapping[str, TurnRenderer | None]:
    return {model.name: await _load_one(model, workers, count) for model in models}


async def _load_one(model: ModelConfig, workers: int, count: CountFault) -> TurnRenderer | None:
    """None where it fails: the model is still served, its engine renders."""
    try:
        from serve_app.rendering import Renderer

        return await Renderer.load(model, workers)
    except Exception:
        logger.exception("no renderer for %s; its engine will render", model.name)
        count("renderer_not_loaded")
        return None


def _fault_counter() -> CountFault:
    counter = Counter(
        "warmpath_ingress_faults",
        description="What went wrong at the ingress, by cause.",
        tag_keys=("cause",),
    )
    return lambda cause: counter.inc(tags={"cause": cause})
