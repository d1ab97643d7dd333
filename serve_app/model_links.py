"""Each model's block index and its replicas' membership, joined to one ingress."""

import asyncio
from random import SystemRandom

from ray.serve.handle import DeploymentHandle

from router.configuration import IndexConfig, ModelConfig, SimConfig
from router.serve.index_client import IndexClient
from router.serve.index_connection import NamedIndex
from router.serve.index_settings import IndexSettings
from router.serve.switchboard import SWITCHBOARD, DeploymentKey
from serve_app.errors import CountFault
from serve_app.index_keeper import IndexKeeper
from serve_app.observe.metrics import Meters
from serve_app.routing import ModelRouter
from serve_app.tuning import Tuned, Tuning

DEFAULT_BLOCK_SIZE = 16
"""vLLM's own, of no weight: the first replica that runs says what is."""


class ModelLinks:
    """Opened at the ingress's start, on the loop that serves requests; closed at its end."""

    def __init__(
        self,
        application: str,
        config: IndexConfig,
        tuning: Tuning,
        meters: Meters,
        count: CountFault,
        *,
        keeps_kv: bool = False,
    ) -> None:
        self._keeps_kv = keeps_kv
        self._application = application
        self._settings = index_settings(config)
        self._tuning = tuning
        self._meters = meters
        self._count = count
        self._clients: list[IndexClient] = []
        self._routers: dict[str, ModelRouter] = {}
        self._keepers: list[asyncio.Task[None]] = []

    def open(self, model: ModelConfig, handle: DeploymentHandle) -> ModelRouter:
        """Does not wait for the index, nor for any replica."""
        connection = NamedIndex(self._application, model.name)
        client = IndexClient(connection, SystemRandom(), self._tuning.current.link)
        router = ModelRouter(
            client, self._tuning, configured_block_size(model), keeps_kv=self._keeps_kv
        )
        SWITCHBOARD.connect(DeploymentKey(handle.app_name, handle.deployment_name), router)
        keeper = IndexKeeper(
            self._application, model.name, self._settings, client, self._meters, self._count
        )
        self._clients.append(client)
        self._routers[model.name] = router
        self._keepers.append(asyncio.create_task(keeper.run(), name=f"index of {model.name}"))
        return router

    def block_size(self, model: str) -> int:
        """In tokens, of a model that was opened: as its replicas say, or configured before."""
        return self._routers[model].block_size

    def adjust(self, tuned: Tuned) -> None:
        for router in self._routers.values():
            router.adjust(tuned)

    async def close(self) -> None:
        for keeper in self._keepers:
            keeper.cancel()
        await asyncio.gather(*self._keepers, return_exceptions=True)
        await asyncio.gather(*(client.close() for client in self._clients))


def index_settings(config: IndexConfig) -> IndexSettings:
    """The section as the actor gets it."""
    return IndexSettings(**config.model_dump())


def configured_block_size(model: ModelConfig) -> int:
    """A guess for prompts that come before any replica has run."""
    if model.engine == "sim":
        return (model.sim or SimConfig()).block_size
    block_size = model.engine_args.get("block_size")
    return block_size if isinstance(block_size, int) else DEFAULT_BLOCK_SIZE
