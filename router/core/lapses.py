"""Deadlines by key, cheap to extend: the queue behind every lease that a timer sweeps. Pure."""

import heapq
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=int | str)

_MIN_HEAP_ENTRIES = 1024


class LapseQueue(Generic[Key]):
    """Keys with the time at which each lapses.

    Extending a deadline is O(1): the heap keeps the earlier time until it gets to the top. Keys
    that left stay in the heap until it is twice as long as needed, so `add` is O(log n) amortised.
    """

    def __init__(self) -> None:
        self._lapses_at: dict[Key, float] = {}
        self._heap: list[tuple[float, Key]] = []

    def __len__(self) -> int:
        return len(self._lapses_at)

    def __contains__(self, key: Key) -> bool:
        return key in self._lapses_at

    def add(self, key: Key, lapses_at: float) -> None:
        """The key must not be there."""
        assert key not in self._lapses_at
        self._lapses_at[key] = lapses_at
        heapq.heappush(self._heap, (lapses_at, key))
        if len(self._heap) > _MIN_HEAP_ENTRIES + 2 * len(self._lapses_at):
            self._heap = [(at, key) for key, at in self._lapses_at.items()]
            heapq.heapify(self._heap)

    def extend(self, key: Key, lapses_at: float) -> None:
        """Moves the deadline of a key that is there, never to an earlier time."""
        if lapses_at > self._lapses_at[key]:
            self._lapses_at[key] = lapses_at

    def remove(self, key: Key) -> None:
        del self._lapses_at[key]

    def lapsed(self, now: float) -> list[Key]:
        """Removes and returns every key whose time has come, in order. O(of them · log n)."""
        keys = []
        while self._lapses_at and (first := self._first())[0] <= now:
            keys.append(first[1])
            del self._lapses_at[first[1]]
        return keys

    def pop_first(self) -> Key:
        """Removes and returns the key that would lapse first; there must be one. O(log n)."""
        key = self._first()[1]
        del self._lapses_at[key]
        return key

    def _first(self) -> tuple[float, Key]:
        """The heap's top once stale ones are gone and extended ones put back."""
        while True:
            lapses_at, key = self._heap[0]
            actual = self._lapses_at.get(key)
            if actual is None:
                heapq.heappop(self._heap)
            elif actual > lapses_at:
                heapq.heapreplace(self._heap, (actual, key))
            else:
                return lapses_at, key
