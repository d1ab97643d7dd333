"""vLLM's `kv_connector_extra_config` for our connector. Values only."""

import msgspec


class StoreAddress(msgspec.Struct, frozen=True):
    """The cluster's address and namespace, the name of this node's store there, and the name under
    which the engine's model is served."""

    cluster: str
    namespace: str
    store_id: str
    model: str


class ConnectorSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Of one engine. `held_bytes` bounds what waits in host memory to be saved."""

    address: StoreAddress
    object_blocks: int
    held_bytes: int
    load_timeout_s: float
