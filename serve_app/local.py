"""The application of `configs/local.yaml`, for those of Serve's commands that want one built:
`serve build serve_app.local:app`.
"""

from router.configuration import AppConfig, IngressConfig, ModelConfig
from serve_app.app import build

CONFIG = AppConfig(
    models=[
        ModelConfig(
            name="tiny",
            replicas=2,
            cpus_per_replica=0.5,
            kv_cache_gib=0.25,
            tool_call_parser="hermes",
            engine_args={"max_model_len": 4096, "block_size": 32},
        )
    ],
    ingress=IngressConfig(cpus_per_replica=0.25),
)

app = build(CONFIG)
