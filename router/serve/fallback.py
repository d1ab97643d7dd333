"""A decision without the block index: the same prefix to the same replica, within a load bound.

Pure. Knows only what its own process has in flight, hence the bound: a hot prefix spills over to
the next replica in its own rendezvous order instead of piling up.
"""

import math
from collections.abc import Mapping, Sequence

import xxhash

from router.core.types import ReplicaId

_HASH_BYTES = 8


def rank_locally(
    hashes: bytes,
    members: Sequence[ReplicaId],
    in_flight: Mapping[ReplicaId, int],
    *,
    prefix_blocks: int = 4,
    load_factor: float = 1.25,
) -> list[ReplicaId]:
    """All members, best first. O(members · log members).

    Rendezvous hashing over the prompt's leading blocks; `hashes` are its packed u64 block hashes.
    Members whose own load has reached `load_factor` times the mean of all come after the others
    (bounded loads, Mirrokni et al. 2018). A prompt shorter than a block goes by load alone.
    """
    if not members:
        return []
    key = _prefix_key(hashes, prefix_blocks)
    if key is None:
        return sorted(members, key=lambda member: in_flight.get(member, 0))
    ranked = sorted(members, key=lambda member: _affinity(member, key), reverse=True)
    total = sum(in_flight.get(member, 0) for member in members)
    bound = math.ceil(load_factor * (total + 1) / len(members))
    ranked.sort(key=lambda member: in_flight.get(member, 0) >= bound)
    return ranked


def _affinity(member: ReplicaId, key: int) -> int:
    return xxhash.xxh3_64_intdigest(member.encode(), key)


def _prefix_key(hashes: bytes, prefix_blocks: int) -> int | None:
    """Hashes are chained, so that of one block stands for all before it too."""
    blocks = min(prefix_blocks, len(hashes) // _HASH_BYTES)
    if blocks == 0:
        return None
    return int.from_bytes(hashes[(blocks - 1) * _HASH_BYTES : blocks * _HASH_BYTES], "little")
