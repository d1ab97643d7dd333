"""Host memory for objects on their way to a store, used again: fresh memory costs an engine's step
several times what the copy into it does."""

import threading

import numpy as np

from replicas.kv.connector.pool import Bytes


class Buffers:
    """Keeps at most `max_bytes` of what was given back. From any thread."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._spare: list[Bytes] = []

    def take(self, size_bytes: int) -> Bytes:
        """Of exactly that size; what is in it is left over from others."""
        with self._lock:
            for place, buffer in enumerate(self._spare):
                if buffer.nbytes == size_bytes:
                    return self._spare.pop(place)
        return np.empty(size_bytes, np.uint8)

    def give(self, buffer: Bytes) -> None:
        """Nobody else may use it any more."""
        with self._lock:
            kept_bytes = sum(spare.nbytes for spare in self._spare)
            if kept_bytes + buffer.nbytes <= self._max_bytes:
                self._spare.append(buffer)
