"""How each replica gets at stored blocks: which store is near, and what a load takes. Pure."""

import msgspec
import numpy as np
from numpy.typing import NDArray

from router.core.types import Slot, StoreId


class LoadLine(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """What a replica has measured: loading b blocks takes `fixed_ms + b * ms_per_block`, computing
    them `b * compute_ms_per_block`."""

    fixed_ms: float
    ms_per_block: float
    compute_ms_per_block: float

    @property
    def break_even_blocks(self) -> float:
        """With fewer, computing is cheaper; infinite where it always is."""
        gain_ms = self.compute_ms_per_block - self.ms_per_block
        return self.fixed_ms / gain_ms if gain_ms > 0 else float("inf")


_UNMEASURED = LoadLine(np.nan, np.nan, np.nan)
_NEVER = (np.inf, 0.0, 1.0)


class StoreAccess:
    """Of up to `max_replicas` replicas, by slot."""

    def __init__(self, max_replicas: int) -> None:
        self._stores: dict[Slot, StoreId] = {}
        self._lines = np.empty((3, max_replicas))
        self._lines.T[:] = _NEVER

    @property
    def is_used(self) -> bool:
        """Any replica has a store."""
        return bool(self._stores)

    def set(self, slot: Slot, store_id: StoreId, line: LoadLine | None) -> None:
        """What the replica says of itself; no line where it has not measured yet."""
        self._stores[slot] = store_id
        line = line or _UNMEASURED
        self._lines[:, slot] = line.fixed_ms, line.ms_per_block, line.compute_ms_per_block

    def forget(self, slot: Slot) -> None:
        """The replica is gone."""
        self._stores.pop(slot, None)
        self._lines[:, slot] = _NEVER

    def store_of(self, slot: int) -> StoreId | None:
        """The one on the replica's own node."""
        return self._stores.get(Slot(slot))

    def shares(self, slots: NDArray[np.int64], blocks: NDArray[np.int32]) -> NDArray[np.float64]:
        """Time to load so many blocks as a share of that to compute them [n]; NaN where it has not
        been measured, infinite for replicas without a store."""
        fixed_ms, ms_per_block, compute_ms_per_block = self._lines.take(slots, axis=1)
        shares: NDArray[np.float64] = fixed_ms / np.maximum(blocks, 1) + ms_per_block
        shares /= compute_ms_per_block
        return shares
