"""A pool of blocks and a store in memory, as the connector's two halves meet them."""

from collections.abc import Sequence
from random import Random

import numpy as np

from replicas.kv.connector.messages import Piece
from replicas.kv.connector.pool import Bytes, HostPool
from replicas.kv.connector.transfers import SealedObject

LAYERS, LAYER_BYTES = 2, 24


def pool_of(blocks: int) -> tuple[HostPool, list[Bytes]]:
    layers = [np.zeros((blocks, LAYER_BYTES), np.uint8) for _ in range(LAYERS)]
    return HostPool(layers), layers


class MemoryStore:
    """Keeps what it gets; `faults` draws what goes wrong with each object that is fetched."""

    def __init__(self, faults: Random | None = None) -> None:
        self.objects: dict[bytes, SealedObject] = {}
        self.offers = 0
        self._faults = faults

    def offer(self, objects: Sequence[SealedObject]) -> list[bool]:
        self.offers += len(objects)
        return [item.key not in self.objects for item in objects]

    def put(self, objects: Sequence[SealedObject]) -> None:
        self.objects |= {item.key: item for item in objects}

    def fetch(self, pieces: Sequence[Piece], timeout_s: float) -> list[Bytes | None]:
        if self._faults is not None and self._faults.random() < 0.1:
            raise TimeoutError("the store did not answer")
        return [self._fetched(piece.key) for piece in pieces]

    def discard(self, keys: Sequence[bytes]) -> None:
        for key in keys:
            self.objects.pop(key, None)

    def _fetched(self, key: bytes) -> Bytes | None:
        item = self.objects.get(key)
        if item is None or self._faults is None:
            return None if item is None else item.data
        fault = self._faults.randrange(6)
        data = item.data.copy()
        if fault == 0:
            return None
        if fault == 1:
            return data[: self._faults.randrange(len(data))]
        if fault == 2:
            data[self._faults.randrange(len(data))] ^= 1 << self._faults.randrange(8)
        if fault == 3:
            return self._faults.choice(list(self.objects.values())).data
        return data
