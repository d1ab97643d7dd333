"""Our connector with a store of its own, in the engine's worker, whose objects go wrong on demand.

A request says so in its transfer parameters: `{"fault": name, "place": n}`. It then loads whatever
of its prompt was saved before, and the `n`-th object goes wrong in that way.
"""

import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from replicas.kv.connector.messages import PARAMETER, Piece, encode_request
from replicas.kv.connector.pool import Bytes
from replicas.kv.connector.transfers import SealedObject
from replicas.kv.connector.vllm_connector import WarmpathConnector
from replicas.kv.connector.vllm_pool import namespace_of
from replicas.kv.store import objects
from replicas.kv.store.objects import HEADER_BYTES, ObjectKey
from router.core.transfer import Keeping, StoredRun, TransferRequest
from router.core.types import StoreId
from tests.unit.replicas.kv.store.stored_objects import NoChecksum

OBJECT_BLOCKS = 2
SLOW_S = 0.5
FAULTS = ("none", "flip", "zero", "cut", "drop", "swap", "late", "gone", "slow")
CHECKED, UNCHECKED = "checked", "unchecked"
"""What the settings give as the store's name: whether checksums are looked at."""


class FaultyObjects:
    """What is to go wrong comes with each piece, as the name of its store."""

    def __init__(self) -> None:
        self._objects: dict[bytes, Bytes] = {}

    def offer(self, sealed: Sequence[SealedObject]) -> list[bool]:
        return [item.key not in self._objects for item in sealed]

    def put(self, sealed: Sequence[SealedObject]) -> None:
        self._objects |= {item.key: item.data.copy() for item in sealed}

    def discard(self, keys: Sequence[bytes]) -> None:
        """Keeps what it has: the same object is to go wrong in other ways too."""

    def fetch(self, pieces: Sequence[Piece], timeout_s: float) -> list[Bytes | None]:
        return [self._fetched(piece) for piece in pieces]

    def _fetched(self, piece: Piece) -> Bytes | None:
        data = self._objects.get(piece.key)
        if data is None:
            return None
        fault = piece.store_id
        if fault == "gone":
            raise ConnectionError("the store is gone")
        if fault == "slow":
            time.sleep(SLOW_S)
        return None if fault in ("drop", "late") else self._changed(data.copy(), fault)

    def _changed(self, data: Bytes, fault: str) -> Bytes:
        middle = HEADER_BYTES + (len(data) - HEADER_BYTES) // 2
        if fault == "flip":
            data[middle + 3] ^= 0x40
        if fault == "zero":
            data[HEADER_BYTES:] = np.roll(data[HEADER_BYTES:], 64)
        if fault == "swap":
            return next(iter(self._objects.values()))
        return data[:middle] if fault == "cut" else data


class FaultyConnector(WarmpathConnector):
    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        self._namespace = namespace_of(vllm_config, kv_cache_config)
        extra = vllm_config.kv_transfer_config.kv_connector_extra_config
        if extra["address"]["store_id"] == UNCHECKED:
            objects.xxh3_128 = NoChecksum

    def on_new_request(self, request: Any) -> None:
        wanted = request.kv_transfer_params or {}
        loads = self._runs(request.block_hashes, wanted) if "fault" in wanted else ()
        blocks = len(request.block_hashes)
        transfer = TransferRequest(
            loads, Keeping(wanted.get("keeping", "nothing")), reuse_blocks=blocks
        )
        request.kv_transfer_params = {PARAMETER: encode_request(transfer)}
        super().on_new_request(request)

    def stores(self, rank: int) -> FaultyObjects:
        return FaultyObjects()

    def _runs(self, hashes: Sequence[bytes], wanted: dict[str, Any]) -> tuple[StoredRun, ...]:
        return tuple(
            StoredRun(
                first,
                OBJECT_BLOCKS,
                StoreId(wanted["fault"] if first // OBJECT_BLOCKS == wanted["place"] else "none"),
                ObjectKey(self._namespace, hashes[first + OBJECT_BLOCKS - 1]).pack(),
            )
            for first in range(0, len(hashes) - OBJECT_BLOCKS + 1, OBJECT_BLOCKS)
        )
