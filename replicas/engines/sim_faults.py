"""Faults that tests play on a simulated engine. No configuration reaches them."""

from collections import deque
from dataclasses import dataclass
from enum import Enum, auto


class FaultKind(Enum):
    """What goes wrong: the engine dies, it stands still, or the request at hand fails."""

    DIE = auto()
    STALL = auto()
    FAIL_REQUEST = auto()


@dataclass(frozen=True, slots=True)
class SimFault:
    """One fault, played once, when `after_tokens` more tokens have been delivered."""

    kind: FaultKind
    after_tokens: int = 0


class FaultScript:
    """Faults in the order in which they are to happen; each counts from the one before."""

    def __init__(self) -> None:
        self._faults: deque[SimFault] = deque(maxlen=64)
        self._tokens = 0

    def add(self, fault: SimFault) -> None:
        self._faults.append(fault)

    def count_token(self) -> None:
        self._tokens += bool(self._faults)

    def due(self) -> FaultKind | None:
        """The fault to play now."""
        if self._faults and self._tokens >= self._faults[0].after_tokens:
            return self._faults[0].kind
        return None

    def played(self) -> None:
        """The fault that is due has happened."""
        self._faults.popleft()
        self._tokens = 0
