"""Each session to a replica of its own while that has room, blind to what caches hold. Pure.

What a session is, the ingress says: a header, or the request's `user`.
"""

from random import Random
from typing import ClassVar

from router.policies.base import Choice, Facts, Reason
from router.policies.hashing import BoundedLoadParameters, place_by_key


class SessionAffinityParameters(BoundedLoadParameters):
    """Those of the bound on load."""


class SessionAffinity:
    """Keeps a session's prefix warm, and spreads what sessions share over all replicas.

    A request without a session hint goes to the least loaded replica.
    """

    name: ClassVar[str] = "session_affinity"
    needs_overlap: ClassVar[bool] = False
    needs_load: ClassVar[bool] = True
    history: ClassVar[None] = None

    def __init__(self, parameters: SessionAffinityParameters) -> None:
        self._parameters = parameters

    def choose(self, facts: Facts, rng: Random) -> Choice:
        hint = facts.hints.session_hint
        key = None if hint is None else hint.encode(errors="replace")
        return place_by_key(key, facts, self._parameters, Reason.SESSION_AFFINITY, rng)
