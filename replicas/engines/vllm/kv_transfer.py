"""How vLLM is told of our KV connector. Imports vLLM."""

import msgspec
from vllm.config import KVTransferConfig

from replicas.kv.connector.settings import ConnectorSettings


def transfer_config(connector: ConnectorSettings | None) -> KVTransferConfig | None:
    """What cannot be loaded is computed: a store is a cache and never a reason to fail."""
    if connector is None:
        return None
    return KVTransferConfig(
        kv_connector="WarmpathConnector",
        kv_connector_module_path="replicas.kv.connector.vllm_connector",
        kv_role="kv_both",
        kv_load_failure_policy="recompute",
        kv_connector_extra_config=msgspec.to_builtins(connector),
    )
