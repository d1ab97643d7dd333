"""What an answer's headers say of its decision, where `expose_decisions` allows it."""

import hashlib

from router.core.types import ReplicaId
from serve_app.routing import LiveRequest


def decision_headers(live: LiveRequest) -> dict[str, str]:
    """Replica, expected cached tokens of all engine requests together, and why it went there."""
    replica_id = live.replica_id or live.route.replica_id
    block_size = live.block_size
    return {
        "X-Warmpath-Replica": alias(replica_id) if replica_id is not None else "unknown",
        "X-Warmpath-Forecast-Tokens": str(sum(live.routing.forecast_blocks) * block_size),
        "X-Warmpath-Reason": live.route.reason,
    }


def alias(replica_id: ReplicaId) -> str:
    """The same for the replica's whole life; says nothing of the cluster."""
    return "r-" + hashlib.sha256(replica_id.encode()).hexdigest()[:8]
