"""`python -m replicas.sim`: one simulated engine behind vLLM's HTTP routes and event sockets.

    python -m replicas.sim --port 8101 --total-blocks 2048 --block-size 64 --timing dynamo \
        --kv-events-endpoint tcp://127.0.0.1:5601 --kv-replay-endpoint tcp://127.0.0.1:5701

Any router that speaks to vLLM can stand in front of several. Binds loopback unless told otherwise:
there is no authentication, and events carry prompts.
"""

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path

import uvicorn
from pydantic import ValidationError

from replicas.engines.sim import SimEngine
from replicas.engines.sim_publisher import Endpoints
from replicas.sim_server.app import SimServer
from replicas.sim_server.metrics import SimMetrics
from router.configuration import SimConfig
from router.core.errors import ConfigurationError


def main(arguments: Sequence[str] | None = None) -> None:
    """Serves until interrupted."""
    parser = argparse.ArgumentParser("python -m replicas.sim", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--model", default="sim")
    parser.add_argument("--kv-events-endpoint", help="ZeroMQ address to publish events at")
    parser.add_argument("--kv-replay-endpoint", help="and to replay them from")
    for name, field in SimConfig.model_fields.items():
        parser.add_argument(
            f"--{name.replace('_', '-')}",
            type=type(field.default),
            default=field.default,
            help=f"default {field.default}",
        )
    options = vars(parser.parse_args(arguments))
    with tempfile.TemporaryDirectory(prefix="warmpath-sim-") as folder:
        endpoints = Endpoints(
            options["kv_events_endpoint"] or f"ipc://{Path(folder)}/events",
            options["kv_replay_endpoint"] or f"ipc://{Path(folder)}/replay",
        )
        try:
            config = SimConfig(**{name: options[name] for name in SimConfig.model_fields})
            application = serve(config, options["model"], endpoints).application()
        except (ConfigurationError, ValidationError) as error:
            parser.error(str(error))
        uvicorn.run(application, host=options["host"], port=options["port"], log_level="warning")


def serve(config: SimConfig, model: str, endpoints: Endpoints | None = None) -> SimServer:
    """The server of one engine, not started. Raises `ConfigurationError`."""
    metrics = SimMetrics(model)
    engine = SimEngine(config, model, endpoints=endpoints, observer=metrics)
    return SimServer(engine, metrics, model, config.max_model_len)
