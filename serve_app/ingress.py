"""The HTTP front as a Serve deployment: any number of replicas, no state that lasts."""

import logging
import os
from collections.abc import Mapping

from fastapi import FastAPI
from ray.serve.handle import DeploymentHandle
from ray.util.metrics import Counter

from router.configuration import AuthConfig, IngressConfig, ModelConfig
from router.core.errors import ConfigurationError
from serve_app.admission import Admission, PromptRenderer
from serve_app.api.application import build_api
from serve_app.auth import check_auth, fingerprint
from serve_app.dispatch import Dispatcher
from serve_app.errors import CountFault
from serve_app.front import Front
from serve_app.handles import ReplicaCalls
from serve_app.render_loop import RenderLoop
from serve_app.salts import CacheSalts

logger = logging.getLogger(__name__)


class Ingress:
    """Authenticates, renders and dispatches. Calls no model while it starts.

    `secret_mark` is the fingerprint of the server secret that the builder saw; an ingress that
    reads another secret would salt the same prompts differently, so it refuses to start.
    """

    def __init__(
        self,
        models: list[ModelConfig],
        config: IngressConfig,
        auth: AuthConfig,
        secret_mark: str | None,
        handles: dict[str, DeploymentHandle],
    ) -> None:
        self._render_loop = RenderLoop()
        self._models = models
        self._config = config
        self._handles = handles
        self._keys, self._secret = check_auth(auth, os.environ)
        if (fingerprint(self._secret) if self._secret else None) != secret_mark:
            raise ConfigurationError("auth.secret_file", "differs from the secret at deployment")

    async def __serve_build_asgi_app__(self) -> FastAPI:
        """Serve's hook after construction: loads the renderers, which takes seconds."""
        count = _fault_counter()
        loading = _load(self._models, self._config.render_workers, count)
        renderers = await self._render_loop.run(loading)
        front = Front(
            keys=self._keys,
            admission=Admission(renderers, CacheSalts(self._secret), count),
            render_loop=self._render_loop,
            renderers=renderers,
            dispatchers={
                name: _dispatcher(handle, self._config, count)
                for name, handle in self._handles.items()
            },
            max_body_bytes=self._config.max_body_bytes,
            count=count,
        )
        return build_api(front)

    def __del__(self) -> None:
        self._render_loop.close()


def _dispatcher(handle: DeploymentHandle, config: IngressConfig, count: CountFault) -> Dispatcher:
    calls = ReplicaCalls(handle, config.retry_after_s, count)
    return Dispatcher(calls.send, config.first_token_timeout_s, config.retry_after_s, count)


async def _load(
    models: list[ModelConfig], workers: int, count: CountFault
) -> Mapping[str, PromptRenderer | None]:
    return {model.name: await _load_one(model, workers, count) for model in models}


async def _load_one(model: ModelConfig, workers: int, count: CountFault) -> PromptRenderer | None:
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
