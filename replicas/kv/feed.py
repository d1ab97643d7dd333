"""The order of an engine's event batches: gaps, replays and restarts. Pure, beside the mirror.

vLLM numbers its batches from 0 in each process and drops those that a subscriber is too slow for.
"""

from dataclasses import dataclass
from enum import StrEnum

from replicas.kv.events import EngineBatch
from replicas.kv.mirror import Mirror

_MAX_HELD_BATCHES = 10_000


class Arrival(StrEnum):
    """What became of a batch. `HELD`: an earlier one is missing, see `EngineFeed.missing_from`.

    `DUPLICATE`: it had been applied before, or had been given up as lost.
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
        self._last_at_s = 0.0
        self._held: dict[int, EngineBatch] = {}

    @property
    def next_seq(self) -> int:
        """The number of the next batch to apply."""
        return self._next_seq

    @property
    def missing_from(self) -> int | None:
        """The first missing number while later batches are held: from there replay is wanted."""
        return self._next_seq if self._held else None

    def live(self, seq: int, batch: EngineBatch) -> Arrival:
        """A batch as it was published, under a number that was passed before if it is late.

        One that is also newer than the last one applied comes from an engine that restarted.
        """
        if seq >= self._next_seq:
            return self._take(seq, batch)
        if batch.at_s <= self._last_at_s:
            return Arrival.DUPLICATE
        self.counters.restarts += 1
        self._held.clear()
        self._mirror.lose()
        self._mirror.is_partial = seq > 0
        self._next_seq = seq
        self._apply(batch)
        return Arrival.RESTARTED

    def replayed(self, seq: int, batch: EngineBatch) -> Arrival:
        """A batch out of the engine's replay buffer, which may hold what was applied before."""
        return Arrival.DUPLICATE if seq < self._next_seq else self._take(seq, batch)

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

    def _take(self, seq: int, batch: EngineBatch) -> Arrival:
        if seq == self._next_seq:
            self._apply(batch)
            self._drain()
            return Arrival.APPLIED
        if not self._held:
            self.counters.gaps += 1
        self._held[seq] = batch
        if len(self._held) > _MAX_HELD_BATCHES:
            self.replay_ended()
        return Arrival.HELD

    def _apply(self, batch: EngineBatch) -> None:
        self._mirror.apply(batch.events, batch.at_s)
        self._last_at_s = batch.at_s
        self._next_seq += 1

    def _drain(self) -> None:
        while (batch := self._held.pop(self._next_seq, None)) is not None:
            self._apply(batch)
