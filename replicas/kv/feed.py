"""The order of an engine's event batches: gaps, replays and restarts. Pure, beside the mirror.

vLLM numbers its batches from 0 in each process and drops those that a subscriber is too slow for.
"""

from dataclasses import dataclass
from enum import StrEnum

from replicas.kv.events import KVEvent
from replicas.kv.mirror import Mirror

_MAX_HELD_BATCHES = 10_000


class Arrival(StrEnum):
    """What became of a batch. `HELD`: an earlier one is missing, see `EngineFeed.missing_from`.

    `RESTARTED`: the numbers began anew, so the engine did; what it held has been dropped.
    """

    APPLIED = "applied"
    DUPLICATE = "duplicate"
    HELD = "held"
    RESTARTED = "restarted"


@dataclass(slots=True)
class FeedCounters:
    """Since the start; `lost` are gaps that no replay could fill."""

    gaps: int = 0
    lost: int = 0
    restarts: int = 0


class EngineFeed:
    """Hands a mirror its engine's batches, each once and in order."""

    def __init__(self, mirror: Mirror) -> None:
        self.counters = FeedCounters()
        self._mirror = mirror
        self._next_seq = 0
        self._held: dict[int, tuple[KVEvent, ...]] = {}

    @property
    def missing_from(self) -> int | None:
        """The first missing number while later batches are held: from there replay is wanted."""
        return self._next_seq if self._held else None

    def live(self, seq: int, events: tuple[KVEvent, ...]) -> Arrival:
        """A batch as it was published. A number that was passed before means a restart."""
        if seq < self._next_seq:
            self.counters.restarts += 1
            self._held.clear()
            self._mirror.lose()
            self._mirror.is_partial = seq > 0
            self._next_seq = seq
            self._apply(events)
            return Arrival.RESTARTED
        return self._take(seq, events)

    def replayed(self, seq: int, events: tuple[KVEvent, ...]) -> Arrival:
        """A batch out of the engine's replay buffer, which may hold what was applied before."""
        return Arrival.DUPLICATE if seq < self._next_seq else self._take(seq, events)

    def replay_ended(self) -> bool:
        """The replay has given all it had; true where the gap is filled.

        Else what is missing is missing for good: the mirror drops everything, goes on with what is
        held, and stays partial until the engine's cache is cleared.
        """
        if not self._held:
            return True
        self.counters.lost += 1
        self._mirror.lose()
        self._next_seq = min(self._held)
        self._drain()
        return False

    def _take(self, seq: int, events: tuple[KVEvent, ...]) -> Arrival:
        if seq == self._next_seq:
            self._apply(events)
            self._drain()
            return Arrival.APPLIED
        if not self._held:
            self.counters.gaps += 1
        self._held[seq] = events
        if len(self._held) > _MAX_HELD_BATCHES:
            self.replay_ended()
        return Arrival.HELD

    def _apply(self, events: tuple[KVEvent, ...]) -> None:
        self._mirror.apply(events)
        self._next_seq += 1

    def _drain(self) -> None:
        while self._held:
            events = self._held.pop(self._next_seq, None)
            if events is None:
                return
            self._apply(events)
