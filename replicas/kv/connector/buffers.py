"""Host memory for objects on their way to a store, used again: fresh memory costs an engine's step
several times what the copy into it does."""

import threading
from collections.abc import Callable

from replicas.kv.connector.pool import Bytes


class Buffers:
    """Made by `make`; keeps at most `max_bytes` of what was given back. From any thread."""

    def __init__(self, make: Callable[[int], Bytes], max_bytes: int) -> None:
        self._make = make
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._spare: list[Bytes] = []

    def take(self, size_bytes: int) -> Bytes:
        """Of exactly that size; what is in it is left over from others."""
        with self._lock:
            for place, buffer in enumerate(self._spare):
                if buffer.nbytes == size_bytes:
                    return self._spare.pop(place)
        return self._make(size_bytes)

    def give(self, buffer: Bytes) -> None:
        """Nobody else may use it any more."""
        with self._lock:
            kept_bytes = sum(spare.nbytes for spare in self._spare)
            if kept_bytes + buffer.nbytes <= self._max_bytes:
                self._spare.append(buffer)
