"""Why an engine found more or less in its cache than was forecast. Pure.

The replica's log is the witness: what the index had been told when it decided, and what happened
to the first block that makes the difference.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from replicas.engines.protocol import Routing
from replicas.kv.event_log import EventLog
from replicas.settlement import Cause
from router.core.types import ReplicaId

_NEVER_TOLD = -1


@dataclass(frozen=True, slots=True)
class Witness:
    """What a replica knows of its own cache; `holds` asks for a block's state of today.

    `is_partial`: events were lost, so that blocks may be held that no event told of.
    """

    replica_id: ReplicaId
    log: EventLog
    holds: Callable[[int], bool]
    is_partial: bool


def cause_of(
    routing: Routing, index: int, cached_blocks: int, hashes: Sequence[int], witness: Witness
) -> Cause | None:
    """The cause for the engine request `index`, whose prompt has these blocks. O(blocks).

    None where the forecast held.
    """
    forecast = routing.forecast_blocks[index]
    if cached_blocks == forecast:
        return None
    if routing.is_fallback or not routing.ranked:
        return Cause.FALLBACK
    if routing.ranked[0] != witness.replica_id:
        return Cause.REROUTED
    told_seq = _NEVER_TOLD if routing.decided_seq is None else routing.decided_seq
    if _overlap(hashes, told_seq, witness) != routing.overlap_blocks[index]:
        return Cause.INDEX_STALE
    cause = None
    if forecast < cached_blocks <= len(hashes):
        cause = _stored(hashes[forecast], told_seq, routing.decided_at, witness)
    elif cached_blocks < forecast <= len(hashes):
        cause = _gone(hashes[cached_blocks], told_seq, witness)
    return cause or (Cause.UNCONFIRMED if witness.is_partial else Cause.UNEXPLAINED)


def _overlap(hashes: Sequence[int], seq: int, witness: Witness) -> int:
    """Leading blocks that the index had been told of, exactly as it counts them."""
    for depth, block_hash in enumerate(hashes):
        if not witness.log.was_held(block_hash, seq, witness.holds(block_hash)):
            return depth
    return len(hashes)


def _stored(block_hash: int, seq: int, decided_at: float, witness: Witness) -> Cause | None:
    """For a block that the engine held against the forecast."""
    times = [change.at_s for change in witness.log.changes_after(block_hash, seq) if change.is_held]
    if not times:
        return None
    return Cause.UNCONFIRMED if times[0] <= decided_at else Cause.IN_FLIGHT


def _gone(block_hash: int, seq: int, witness: Witness) -> Cause | None:
    """For a block that the engine lacked: removed, or promised by an earlier prompt of the call."""
    changes = witness.log.changes_after(block_hash, seq)
    if any(not change.is_held for change in changes):
        return Cause.EVICTED
    return Cause.IN_FLIGHT if changes else None
