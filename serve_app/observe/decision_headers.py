"""What an answer's headers say of its decision, where `expose_decisions` allows it."""

import hashlib

from router.core.types import ReplicaId
from serve_app.routing import LiveRequest


def decision_headers(live: LiveRequest) -> dict[str, str]:
    """Replica, the `cached_tokens` that the answer's usage is expected to have, and the reason.

    OpenAI's usage counts a prompt once, whatever the number of its choices.
    """
    replica_id = live.replica_id or live.route.replica_id
    forecast_blocks = sum(live.routing.forecast_blocks[:: live.choices])
    return {
        "X-Warmpath-Replica": alias(replica_id) if replica_id is not None else "unknown",
        "X-Warmpath-Forecast-Tokens": str(forecast_blocks * live.block_size),
        "X-Warmpath-Reason": live.route.reason,
    }


def alias(replica_id: ReplicaId) -> str:
    """The same for the replica's whole life; says nothing of the cluster."""
    return "r-" + hashlib.sha256(replica_id.encode()).hexdigest()[:8]
