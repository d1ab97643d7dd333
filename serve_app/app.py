"""The builder: `serve run serve_app.app:build` and the import path of every shipped config.

Must not import annotations from `__future__`: Serve reads the parameter's type at run time.
"""

import os

from ray import serve

from replicas.deployment import build_deployment
from router.configuration import AppConfig
from serve_app.auth import check_auth, fingerprint
from serve_app.ingress import Ingress


def build(args: AppConfig) -> serve.Application:
    """One application: an ingress before one deployment of replicas for each model.

    Raises `ConfigurationError`, so that a wrong key file or secret ends the deployment at once.
    """
    _, secret = check_auth(args.auth, os.environ)
    config = args.ingress
    deployment = serve.deployment(serve.ingress()(Ingress)).options(
        name="Ingress",
        num_replicas=config.replicas,
        max_ongoing_requests=config.max_ongoing_requests,
        max_queued_requests=config.max_queued_requests,
        backpressure_config={"retry_after_s": config.retry_after_s},
        ray_actor_options={"num_cpus": config.cpus_per_replica},
    )
    replicas = {
        model.name: build_deployment(model, max_queued_requests=config.max_queued_requests)
        for model in args.models
    }
    mark = fingerprint(secret) if secret else None
    return deployment.bind(args.models, config, args.auth, mark, replicas)
