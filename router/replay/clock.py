"""The virtual clock: what is to happen, in the order of time. Pure."""

import heapq
from collections.abc import Callable

Event = Callable[[], None]


class VirtualClock:
    """Events at one moment happen in the order in which they were entered."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._entered = 0
        self._agenda: list[tuple[float, int, Event]] = []

    def at(self, time_s: float, event: Event) -> None:
        """`time_s` is not in the past."""
        self._entered += 1
        heapq.heappush(self._agenda, (max(time_s, self.now_s), self._entered, event))

    def step(self) -> bool:
        """Lets the next event happen; false where none is left."""
        if not self._agenda:
            return False
        self.now_s, _, event = heapq.heappop(self._agenda)
        event()
        return True
