"""Contexts that expired, remembered for a while so that their owners can be told."""

from typing import NamedTuple

from router.core.types import ContextId, Tenant


class Tombstone(NamedTuple):
    """`until` is monotonic."""

    tenant: Tenant
    until: float


class Tombstones:
    """At most `limit`; past it the oldest goes first, and its context was never there."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._stones: dict[ContextId, Tombstone] = {}

    def __len__(self) -> int:
        return len(self._stones)

    def set(self, context_id: ContextId, stone: Tombstone) -> None:
        """In the order of `until`."""
        self._stones[context_id] = stone

    def discard(self, context_id: ContextId) -> None:
        self._stones.pop(context_id, None)

    def get(self, context_id: ContextId, now: float) -> Tombstone | None:
        stone = self._stones.get(context_id)
        return None if stone is None or stone.until <= now else stone

    def due(self, now: float, limit: int) -> list[ContextId]:
        """At most `limit` whose time is over or for which there is no room, oldest first."""
        due: list[ContextId] = []
        excess = len(self._stones) - self._limit
        for context_id, stone in self._stones.items():
            if len(due) >= limit or (stone.until > now and len(due) >= excess):
                break
            due.append(context_id)
        return due
