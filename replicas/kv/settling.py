"""Why an engine found more or less in its cache than was forecast. Pure.

The replica's log is the witness: what the index had been told when it decided, and what happened
to the first block that makes the difference.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from replicas.engines.protocol import EngineReport, EngineRequest, Routing
from replicas.kv.event_log import EventLog
from replicas.settlement import Cause
from router.core.hashing import NO_EXTRA_KEYS, hash_blocks, salt
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


def causes_of(
    request: EngineRequest,
    routing: Routing,
    report: EngineReport,
    block_size: int,
    witness: Witness,
) -> tuple[Cause | None, ...]:
    """One entry per engine request, None where the forecast held.

    O(tokens) for each difference; without one, nothing is hashed.
    """
    figures = report.cached_tokens
    forecasts = routing.forecast_blocks
    if not len(figures) == len(forecasts) == len(routing.overlap_blocks):
        is_blind = routing.is_fallback
        return (Cause.FALLBACK if is_blind else Cause.UNEXPLAINED,) * len(figures)
    choices = len(figures) // max(len(request.prompts), 1)
    keys = NO_EXTRA_KEYS if request.cache_salt is None else salt(request.cache_salt)
    causes: list[Cause | None] = []
    for index, (figure, forecast) in enumerate(zip(figures, forecasts, strict=True)):
        if figure == forecast * block_size:
            causes.append(None)
            continue
        prompts = request.prompts[index // choices : index // choices + 1]
        hashes = [hash_blocks(prompt, block_size, keys).tolist() for prompt in prompts] or [[]]
        found = figure // block_size
        if _lacks_load(request, routing, found, witness):
            causes.append(Cause.LOAD_FAILED)
        else:
            causes.append(cause_of(routing, index, found, hashes[0], witness))
    return tuple(causes)


def _lacks_load(
    request: EngineRequest, routing: Routing, cached_blocks: int, witness: Witness
) -> bool:
    """The engine found what was confirmed here, but not all that it was to load."""
    loads = () if request.transfer is None else request.transfer.loads
    is_here = routing.ranked[:1] == (witness.replica_id,)
    (overlap, *_), (forecast, *_) = routing.overlap_blocks, routing.forecast_blocks
    return bool(loads) and is_here and overlap <= cached_blocks < forecast


def cause_of(
    routing: Routing, index: int, cached_blocks: int, hashes: Sequence[int], witness: Witness
) -> Cause:
    """Why the engine request `index`, of a prompt of these blocks, differs. O(blocks)."""
    forecast = routing.forecast_blocks[index]
    if routing.is_fallback or not routing.ranked:
        return Cause.FALLBACK
    if routing.ranked[0] != witness.replica_id:
        return Cause.REROUTED
    told_seq = _NEVER_TOLD if routing.decided_seq is None else routing.decided_seq
    if _overlap(hashes, told_seq, witness) != routing.overlap_blocks[index]:
        return Cause.INDEX_STALE
    cause: Cause | None = None
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
