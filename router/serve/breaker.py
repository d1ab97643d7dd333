"""When to stop asking the block index, and when to ask again. Pure: the time is an argument."""


class Breaker:
    """Opens after consecutive missed deadlines; while open, one probe an interval is due.

    Only an answer in time closes it: a late one shows that the index lives, not that it keeps up.
    """

    __slots__ = ("_misses", "_misses_to_open", "_next_probe_at", "_probe_interval_s")

    def __init__(self, misses_to_open: int = 3, probe_interval_s: float = 1.0) -> None:
        self._misses_to_open = misses_to_open
        self._probe_interval_s = probe_interval_s
        self._misses = 0
        self._next_probe_at = 0.0

    def adjust(self, misses_to_open: int, probe_interval_s: float) -> None:
        """Closes it: under other settings, what was missed so far says nothing."""
        self._misses_to_open = misses_to_open
        self._probe_interval_s = probe_interval_s
        self._misses = 0

    @property
    def is_open(self) -> bool:
        return self._misses >= self._misses_to_open

    def answered(self) -> bool:
        """An answer came in time. True where that closed the breaker."""
        was_open, self._misses = self.is_open, 0
        return was_open

    def missed(self, now: float) -> bool:
        """A deadline passed or the call failed. True where that opened the breaker."""
        was_open = self.is_open
        self._misses += 1
        if self.is_open and not was_open:
            self._next_probe_at = now + self._probe_interval_s
        return self.is_open and not was_open

    def probe_wait_s(self, now: float) -> float:
        """Seconds until the next probe is due; 0 when it is. Meaningful while open only."""
        return max(0.0, self._next_probe_at - now)

    def probed(self, now: float) -> None:
        """A probe leaves: the next one waits an interval."""
        self._next_probe_at = now + self._probe_interval_s
