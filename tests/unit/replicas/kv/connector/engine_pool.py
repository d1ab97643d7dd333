"""A pool of blocks and a store in memory, as the connector's two halves meet them."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from replicas.kv.connector.messages import Piece
from replicas.kv.connector.pool import Bytes, HostPool
from replicas.kv.connector.transfers import SealedObject

LAYERS, LAYER_BYTES = 2, 24


def pool_of(blocks: int) -> tuple[HostPool, list[Bytes]]:
    layers = [np.zeros((blocks, LAYER_BYTES), np.uint8) for _ in range(LAYERS)]
    return HostPool(layers), layers


class MemoryStore:
    """Keeps what it gets."""

    def __init__(self) -> None:
        self.objects: dict[bytes, SealedObject] = {}
        self.offers = 0

    def offer(self, objects: Sequence[SealedObject]) -> list[bool]:
        self.offers += len(objects)
        return [item.key not in self.objects for item in objects]

    def put(self, objects: Sequence[SealedObject]) -> None:
        self.objects |= {item.key: replace(item, data=item.data.copy()) for item in objects}

    def fetch(self, pieces: Sequence[Piece], timeout_s: float) -> list[Bytes | None]:
        found = [self.objects.get(piece.key) for piece in pieces]
        return [None if item is None else item.data for item in found]

    def discard(self, keys: Sequence[bytes]) -> None:
        for key in keys:
            self.objects.pop(key, None)
