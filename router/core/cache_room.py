"""What each replica's cache can take beside what is booked there. Pure."""

import numpy as np

from router.core.types import Slot


class CacheRoom:
    """`tokens` float64 [max_replicas], live and read-only: the cache less what bookings are yet to
    write to it; infinite where no size is known, below 0 where bookings must wait for each other.

    A booking's reused blocks are not counted: others may use them at the same time.
    """

    def __init__(self, max_replicas: int) -> None:
        tokens = np.full(max_replicas, np.inf)
        self._free = tokens
        self._booked = [0] * max_replicas
        self._known: set[Slot] = set()
        self.tokens = tokens.view()
        self.tokens.flags.writeable = False

    @property
    def is_known(self) -> bool:
        """Of any replica."""
        return bool(self._known)

    def add(self, slot: Slot, tokens: int) -> None:
        """Booked, or no longer booked where negative."""
        self._booked[slot] += tokens
        self._free[slot] -= tokens

    def set_size(self, slot: Slot, cache_tokens: int) -> None:
        """How many tokens the replica's cache holds."""
        self._known.add(slot)
        self._free[slot] = float(cache_tokens - self._booked[slot])

    def forget(self, slot: Slot) -> None:
        """The replica is gone; the next one there has a size of its own."""
        self._known.discard(slot)
        self._free[slot] = np.inf
