"""What the simulated engine says of its load and of its answers to whoever observes it."""

from dataclasses import dataclass
from typing import Protocol

from replicas.sim.answers import Usage


@dataclass(frozen=True, slots=True)
class SimLoad:
    """Sequences by state, the share of blocks in use (0 to 1), preemptions since the start."""

    running: int
    waiting: int
    kv_usage: float
    preemptions: int


class SimObserver(Protocol):
    def token(self, waited_s: float, is_first: bool) -> None:
        """A choice got a token, `waited_s` after the one before or after its arrival."""
        ...

    def ended(self, usage: Usage, finish_reason: str, duration_s: float) -> None:
        """An answer is complete; the reason is its first choice's."""
        ...


class NoObserver:
    def token(self, waited_s: float, is_first: bool) -> None:
        pass

    def ended(self, usage: Usage, finish_reason: str, duration_s: float) -> None:
        pass
