"""Each session to a replica of its own, by hash: sticky, blind to load and cache. Pure.

What many routers do. It keeps a session's prefix warm while replicas neither come nor go, and
spreads what sessions share over all of them.
"""

from random import Random
from typing import ClassVar

import numpy as np
from xxhash import xxh3_64_intdigest

from router.policies.base import Choice, Facts, Parameters, Reason


class SessionHashParameters(Parameters):
    """None: there is nothing to set."""


class SessionHash:
    """Rendezvous hashing (Thaler and Ravishankar 1998); costs in [0, 1) are the hashes.

    A replica that goes takes only its own sessions with it. A request without a session hint goes
    to any.
    """

    name: ClassVar[str] = "session_hash"
    needs_overlap: ClassVar[bool] = False
    needs_load: ClassVar[bool] = False

    def __init__(self, parameters: SessionHashParameters) -> None:
        self._parameters = parameters

    def choose(self, facts: Facts, rng: Random) -> Choice:
        hint = facts.hints.session_hint
        session = rng.randbytes(16) if hint is None else hint.encode()
        seeds = facts.slots.tolist()
        costs = np.array([xxh3_64_intdigest(session, seed) for seed in seeds]) / 2.0**64
        reason = Reason.ONLY_CANDIDATE if len(seeds) == 1 else Reason.SESSION_HASH
        return Choice(facts.slots[costs.argsort()], costs, reason)
