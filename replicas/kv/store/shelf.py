"""What a store keeps within a byte budget, and what leaves first. Pure."""

from collections import OrderedDict
from collections.abc import Iterator

Key = bytes


class Shelf:
    """Sizes by key, least recently used first; claimed ones leave after all others.

    A claim is a preference: for a claimed object claimed ones leave too, once nothing else is left.
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

    def claimed(self) -> Iterator[Key]:
        """Those to leave first come first."""
        return iter(self._claimed)

    def victims(self, key: Key, size_bytes: int, *, is_claimed: bool) -> list[Key]:
        """What would have to go for this object: itself alone where it cannot have the room.

        O(victims); changes nothing.
        """
        short_bytes = self.used_bytes + size_bytes - self.budget_bytes
        gone: list[Key] = []
        for rows in (self._free, self._claimed) if is_claimed else (self._free,):
            for other, other_bytes in rows.items():
                if short_bytes <= 0:
                    return gone
                gone.append(other)
                short_bytes -= other_bytes
        return gone if short_bytes <= 0 else [key]

    def put(self, key: Key, size_bytes: int, *, is_claimed: bool = False) -> list[Key]:
        """Takes an object in, and returns what went for it: see `victims`."""
        self.remove(key)
        gone = self.victims(key, size_bytes, is_claimed=is_claimed)
        for other in gone:
            self.remove(other)
        if key not in gone:
            (self._claimed if is_claimed else self._free)[key] = size_bytes
            self.used_bytes += size_bytes
        return gone

    def touch(self, key: Key) -> bool:
        """It was used; false where it is not here."""
        for rows in (self._free, self._claimed):
            if key in rows:
                rows.move_to_end(key)
                return True
        return False

    def remove(self, key: Key) -> bool:
        size_bytes = self._free.pop(key, None) or self._claimed.pop(key, None)
        if size_bytes is None:
            return False
        self.used_bytes -= size_bytes
        return True

    def claim(self, key: Key, *, is_claimed: bool) -> None:
        """Whether anybody claims it, from here on; a change counts as a use."""
        old, new = (self._free, self._claimed) if is_claimed else (self._claimed, self._free)
        if key in old:
            new[key] = old.pop(key)
