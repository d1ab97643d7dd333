"""What stored objects were computed from, and which are used most: for replicas to be warmed. Pure.

Kept in memory only: token ids and salts are as private as the blocks, and of no use without them.
"""

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import msgspec

from replicas.kv.store.contents import StoredObject

HASH_BYTES = 8
MAX_EXPECTED = 1024
"""Objects that were offered and have not come: whoever offers many brings them soon."""


class Origin(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The tokens of an object's blocks, packed u32, which follow the block of `parent_hash` (the
    router's; None at the root) at `first_block` of a chain with this salt."""

    first_block: int
    parent_hash: int | None
    token_ids: bytes
    cache_salt: str | None


class WarmPrefix(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The tokens of a whole stored prefix, and its objects in order: keys and their blocks."""

    token_ids: bytes
    cache_salt: str | None
    objects: tuple[tuple[bytes, int], ...]

    @property
    def blocks(self) -> int:
        return sum(blocks for _, blocks in self.objects)


@dataclass(slots=True)
class _Row:
    stored: StoredObject
    origin: Origin
    uses: float = 1.0


class Origins:
    """Of what is stored; who removes an object removes it here."""

    def __init__(self) -> None:
        self._rows: dict[bytes, _Row] = {}
        self._by_end: dict[tuple[str, int], _Row] = {}
        self._expected: OrderedDict[bytes, Origin] = OrderedDict()

    def __len__(self) -> int:
        return len(self._rows)

    def get(self, key: bytes) -> Origin | None:
        row = self._rows.get(key)
        return None if row is None else row.origin

    def offered(self, stored: StoredObject, origin: Origin | None, *, is_here: bool) -> None:
        """An object that is here is used once more; of one that is not the origin comes first."""
        if stored.key in self._rows:
            self.use([stored.key])
        elif origin is not None and is_here:
            self.add(stored, origin)
        elif origin is not None:
            self._expected[stored.key] = origin
            while len(self._expected) > MAX_EXPECTED:
                self._expected.popitem(last=False)

    def came(self, stored: StoredObject) -> None:
        """An object that was offered is here."""
        origin = self._expected.pop(stored.key, None)
        if origin is not None:
            self.add(stored, origin)

    def add(self, stored: StoredObject, origin: Origin) -> None:
        row = _Row(stored, origin)
        self._rows[stored.key] = self._by_end[_end(stored)] = row

    def use(self, keys: Iterable[bytes]) -> None:
        for key in keys:
            row = self._rows.get(key)
            if row is not None:
                row.uses += 1.0

    def remove(self, keys: Iterable[bytes]) -> None:
        for key in keys:
            row = self._rows.pop(key, None)
            if row is not None:
                self._by_end.pop(_end(row.stored), None)

    def fade(self) -> None:
        """Earlier uses count half from here on. O(objects)."""
        for row in self._rows.values():
            row.uses /= 2

    def hottest(self, model: str, max_prefixes: int, max_blocks: int) -> list[WarmPrefix]:
        """Whole prefixes of a model's, the most used first, none a part of an earlier one; those
        of one use are nobody's but their own. O(objects · log objects)."""
        found: list[WarmPrefix] = []
        covered: set[bytes] = set()
        for row in self._ranked(model):
            if len(found) >= max_prefixes:
                break
            chain = [] if row.stored.key in covered else self._chain(row)
            blocks = sum(r.stored.blocks for r in chain if r.stored.key not in covered)
            if chain and blocks <= max_blocks:
                max_blocks -= blocks
                covered.update(r.stored.key for r in chain)
                found.append(_prefix(chain))
        return found

    def _ranked(self, model: str) -> Iterator[_Row]:
        rows = [r for r in self._rows.values() if r.stored.model == model and r.uses > 1.0]
        rows.sort(key=lambda row: (row.uses, row.origin.first_block), reverse=True)
        return iter(rows)

    def _chain(self, row: _Row) -> list[_Row]:
        """From the root to this object; empty where a part of it is not here."""
        chain = [row]
        while (parent := chain[-1].origin.parent_hash) is not None:
            before = self._by_end.get((row.stored.model, parent))
            if before is None:
                return []
            chain.append(before)
        chain.reverse()
        return chain


def _end(stored: StoredObject) -> tuple[str, int]:
    return stored.model, int.from_bytes(stored.hashes[-HASH_BYTES:], "little")


def _prefix(chain: list[_Row]) -> WarmPrefix:
    return WarmPrefix(
        b"".join(row.origin.token_ids for row in chain),
        chain[-1].origin.cache_salt,
        tuple((row.stored.key, row.stored.blocks) for row in chain),
    )
