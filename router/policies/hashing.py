"""Consistent hashing with bounded loads, for policies that keep equal keys together. Pure.

Rendezvous hashing (Thaler and Ravishankar 1998): every key has its own order of the replicas, so
that a replica that goes takes only its own keys with it, and one that comes takes its share of all.
Bounded loads (Mirrokni, Thorup and Zadimoghaddam 2018): a key whose replica is full goes to the
next of its order, and comes back.
"""

from random import Random

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from xxhash import xxh3_64_intdigest

from router.policies.base import Choice, Facts, Floats, Parameters, Reason
from router.policies.least_loaded import LoadParameters, least_loaded

_MIX = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_SHIFTS = np.uint64(30), np.uint64(27), np.uint64(31), np.uint64(11)
_LOAD = LoadParameters()


class BoundedLoadParameters(Parameters):
    """When a key goes elsewhere than to its own replica.

    `load_factor`: a replica with at least that multiple of the candidates' mean requests is full;
    null: none ever is. `min_requests`: with fewer requests than that, a replica is never full.
    """

    load_factor: float | None = Field(1.25, ge=1)
    min_requests: int = Field(4, ge=1)


def place_by_key(
    key: bytes | None, facts: Facts, bounds: BoundedLoadParameters, reason: Reason, rng: Random
) -> Choice:
    """Ranks by the key's own order, the full ones last. Without a key, by load.

    Costs are in [0, 1) for places in that order, and 1 more for the full.
    """
    if key is None:
        return least_loaded(facts, _LOAD, rng)
    costs = distances(xxh3_64_intdigest(key), facts.replica_keys) + _is_full(facts, bounds)
    order = costs.argsort()
    if len(costs) == 1:
        reason = Reason.ONLY_CANDIDATE
    elif costs[order[0]] != (costs % 1).min():
        reason = Reason.AFFINITY_OVERLOADED
    return Choice(facts.slots[order], costs, reason)


def distances(key: int, replica_keys: NDArray[np.uint64]) -> Floats:
    """How far each replica is from a key, in [0, 1): a hash of the pair (SplitMix64's mixer)."""
    mixed = replica_keys ^ np.uint64(key)
    mixed = mixed + _MIX[0]
    mixed = (mixed ^ (mixed >> _SHIFTS[0])) * _MIX[1]
    mixed = (mixed ^ (mixed >> _SHIFTS[1])) * _MIX[2]
    mixed = mixed ^ (mixed >> _SHIFTS[2])
    unit: Floats = (mixed >> _SHIFTS[3]).astype(np.float64) * 2.0**-53
    return unit


def _is_full(facts: Facts, bounds: BoundedLoadParameters) -> NDArray[np.bool_]:
    requests = facts.requests
    if bounds.load_factor is None:
        return np.zeros(len(requests), np.bool_)
    most = np.ceil(bounds.load_factor * (requests.sum() + 1) / len(requests))
    full: NDArray[np.bool_] = requests >= max(most, bounds.min_requests)
    return full
