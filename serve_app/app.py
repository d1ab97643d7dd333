"""The builder: `serve run serve_app.app:build` and the import path of every shipped config.

Must not import annotations from `__future__`: Serve reads the parameter's type at run time.
"""

import os

from ray import serve

from replicas.deployment import build_deployment
from replicas.serve_flags import serve_flags
from router.configuration import AppConfig
from serve_app.auth import check_auth, fingerprint
from serve_app.ingress import Ingress


def build(args: AppConfig) -> serve.Application:
    """One application: an ingress before one deployment of replicas for each model.

    Raises `ConfigurationError`, so that a wrong key file or secret ends the deployment at once.
    """
    queued = args.ingress.max_queued_requests
    replicas = {
        model.name: build_deployment(model, args.kv_store, max_queued_requests=queued)
        for model in args.models
    }
    return build_ingress(args, replicas)


def build_ingress(args: AppConfig, replicas: dict[str, serve.Application]) -> serve.Application:
    """The ingress before whatever stands behind each model's name."""
    _, secret = check_auth(args.auth, os.environ)
    config = args.ingress
    deployment = serve.deployment(serve.ingress()(Ingress)).options(
        name="Ingress",
        num_replicas=config.replicas,
        max_ongoing_requests=config.max_ongoing_requests,
        # Here Serve refuses in plain text, also bursts; the model's queue answers as OpenAI does.
        max_queued_requests=config.max_ongoing_requests,
        backpressure_config={"retry_after_s": config.retry_after_s},
        ray_actor_options={
            "num_cpus": config.cpus_per_replica,
            "runtime_env": {"env_vars": serve_flags(os.environ)},
        },
        # Never None, so that Serve asks every ingress at its start, and after a removal again.
        user_config={},
    )
    mark = fingerprint(secret) if secret else None
    return deployment.bind(
        args.models, config, args.auth, args.index, args.contexts, args.kv_store, mark, replicas
    )
