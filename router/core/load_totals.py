"""Sums of load by slot and by tenant. Pure; knows no bookings, the ledger does."""

from enum import IntEnum
from typing import NamedTuple

import numpy as np

from router.core.recent import FadingTotals
from router.core.types import Slot, Tenant


class Load(IntEnum):
    """The rows of an array of loads."""

    PREFILL_TOKENS = 0
    DECODE_BLOCKS = 1
    REQUESTS = 2
    RECENT_TOKENS = 3


class TenantLoad(NamedTuple):
    """What one tenant has booked on all replicas together."""

    prefill_tokens: int = 0
    decode_blocks: int = 0
    requests: int = 0


class LoadTotals:
    """`loads` float64 [4, max_replicas] by `Load`, read-only to callers: floats, because prices
    are, and whole numbers all the same but for the recent tokens, which `recent` fades.

    A tenant is kept for as long as it has requests.
    """

    def __init__(self, max_replicas: int, recent_half_life_s: float) -> None:
        totals = np.zeros((len(Load), max_replicas))
        self.recent = FadingTotals(totals[Load.RECENT_TOKENS], recent_half_life_s)
        # One cell through a memoryview costs a third of one through the array.
        rows = totals[: Load.RECENT_TOKENS]
        self._cells: tuple[memoryview[float], ...] = tuple(row.data for row in rows)
        self._by_tenant: dict[Tenant, list[int]] = {}
        self.loads = totals.view()
        self.loads.flags.writeable = False

    def add(
        self, slot: Slot, tenant: Tenant, prefill_tokens: int, decode_blocks: int, requests: int
    ) -> None:
        """Amounts may be negative, the sums may not become so."""
        prefill_cells, block_cells, request_cells = self._cells
        prefill_cells[slot] += prefill_tokens
        block_cells[slot] += decode_blocks
        request_cells[slot] += requests
        load = self._by_tenant.get(tenant)
        if load is None:
            load = self._by_tenant[tenant] = [0, 0, 0]
        load[0] += prefill_tokens
        load[1] += decode_blocks
        load[2] += requests
        if not load[2]:
            del self._by_tenant[tenant]

    def tenant(self, tenant: Tenant) -> TenantLoad:
        return TenantLoad(*self._by_tenant.get(tenant, ()))

    def tenants(self) -> dict[Tenant, TenantLoad]:
        """Tenants with at least one request. A copy; O(tenants)."""
        return {tenant: TenantLoad(*load) for tenant, load in self._by_tenant.items()}
