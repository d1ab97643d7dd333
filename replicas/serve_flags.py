"""Serve's own flags for the processes of our deployments, whoever started Serve.

Serve reads them from the environment when a replica's process imports it, so they travel in the
deployment's runtime environment; a proxy has its own and cannot be reached this way.
"""

from collections.abc import Mapping

MAX_MESSAGE_BYTES = 64 * 1024 * 1024

SERVE_FLAGS: Mapping[str, str] = {
    # Calls between deployments, chunk by chunk, cost a third of those between actors.
    "RAY_SERVE_USE_GRPC_BY_DEFAULT": "1",
    "RAY_SERVE_REPLICA_GRPC_MAX_MESSAGE_LENGTH": str(MAX_MESSAGE_BYTES),
    # One event loop a process: every hop to another thread waits for the interpreter's lock.
    "RAY_SERVE_RUN_ROUTER_IN_SEPARATE_LOOP": "0",
    "RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD": "0",
}


def serve_flags(environ: Mapping[str, str]) -> dict[str, str]:
    """The flags that `environ`, of the process that builds a deployment, leaves open."""
    return {name: value for name, value in SERVE_FLAGS.items() if name not in environ}
