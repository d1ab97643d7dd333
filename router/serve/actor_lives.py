"""What one process knows of the index actor: which life of it answers, its clock, its members."""

from collections import deque

from router.core.types import ReplicaId
from router.serve.flights import ActorClock
from router.serve.wire import Landing

_NO_VERSION = -1
_REMEMBERED_LIVES = 16


class ActorLives:
    """Read off the actor's answers. `members_version` is the last one that it told of."""

    def __init__(self, max_round_trip_s: float) -> None:
        self.clock = ActorClock(max_round_trip_s)
        self.members: tuple[ReplicaId, ...] = ()
        self.members_version = _NO_VERSION
        self._incarnation: int | None = None
        # A late answer of a former life must not look like another restart.
        self._lives: deque[int] = deque(maxlen=_REMEMBERED_LIVES)

    def meet(self, landing: Landing, sent_at: float, received_at: float) -> bool:
        """Learns from an answer; times are this process's. True where a life first answers."""
        is_met = landing.incarnation in self._lives
        if not is_met:
            self._begin(landing.incarnation)
        if landing.incarnation == self._incarnation:
            self.clock.observe(sent_at, received_at, landing.now)
            if landing.members is not None:
                self.members_version = landing.members_version
                self._adopt(landing.members)
        return not is_met

    def _begin(self, incarnation: int) -> None:
        self.clock.reset()
        self.members_version = _NO_VERSION
        self._incarnation = incarnation
        self._lives.append(incarnation)

    def _adopt(self, members: tuple[str, ...]) -> None:
        """An index that knows nobody is a fresh one: who was known before is the better guess."""
        if members:
            self.members = tuple(ReplicaId(member) for member in members)
