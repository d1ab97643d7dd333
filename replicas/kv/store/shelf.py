"""What a store keeps within a byte budget, and what leaves first. Pure."""

from collections import OrderedDict
from collections.abc import Iterator

Key = bytes


class Shelf:
    """Sizes by key, least recently used first; claimed ones leave after all others.

    A claim is a preference: past the budget claimed objects leave too.
    """

    def __init__(self, budget_bytes: int) -> None:
        self.budget_bytes = budget_bytes
        self.used_bytes = 0
        self._free: OrderedDict[Key, int] = OrderedDict()
        self._claimed: OrderedDict[Key, int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._free) + len(self._claimed)

    def __contains__(self, key: Key) -> bool:
        return key in self._free or key in self._claimed

    def __iter__(self) -> Iterator[Key]:
        """Those to leave first come first."""
        yield from self._free
        yield from self._claimed

    def put(self, key: Key, size_bytes: int, *, is_claimed: bool = False) -> list[Key]:
        """Takes an object in, and returns what has to go for it: itself where it can never fit."""
        self.remove(key)
        if size_bytes > self.budget_bytes:
            return [key]
        (self._claimed if is_claimed else self._free)[key] = size_bytes
        self.used_bytes += size_bytes
        return self._evicted()

    def touch(self, key: Key) -> bool:
        """It was used; false where it is not here."""
        rows = self._claimed if key in self._claimed else self._free
        if key not in rows:
            return False
        rows.move_to_end(key)
        return True

    def remove(self, key: Key) -> bool:
        size_bytes = self._free.pop(key, None) or self._claimed.pop(key, None)
        if size_bytes is None:
            return False
        self.used_bytes -= size_bytes
        return True

    def claimed(self) -> Iterator[Key]:
        """Those that are claimed, the least recently used first."""
        return iter(self._claimed)

    def claim(self, key: Key, *, is_claimed: bool) -> None:
        """Whether anybody claims it, from here on; a change counts as a use."""
        old, new = (self._free, self._claimed) if is_claimed else (self._claimed, self._free)
        if key in old:
            new[key] = old.pop(key)

    def _evicted(self) -> list[Key]:
        gone = []
        while self.used_bytes > self.budget_bytes:
            rows = self._free or self._claimed
            key, size_bytes = rows.popitem(last=False)
            self.used_bytes -= size_bytes
            gone.append(key)
        return gone
