"""Which prefixes are asked for most often, roughly and in bounded memory."""

from dataclasses import dataclass

from router.core.types import BlockHash

_SAMPLED_EVERY = 8


@dataclass(frozen=True, slots=True)
class HotPrefix:
    """The prefix of `blocks` blocks that ends with `block_hash`; `lookups` is an estimate."""

    block_hash: BlockHash
    blocks: int
    lookups: int


class HotPrefixes:
    """Counts every eighth lookup. When twice `capacity` prefixes are counted, the rarer half goes
    and the counts of the others are halved, so that old heat fades."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._counts: dict[int, tuple[int, int]] = {}
        self._lookups = 0

    def record(self, block_hash: int, blocks: int) -> None:
        counted, _ = self._counts.get(block_hash, (0, 0))
        self._counts[block_hash] = (counted + 1, blocks)
        if len(self._counts) > 2 * self._capacity:
            kept = sorted(self._counts.items(), key=lambda entry: -entry[1][0])[: self._capacity]
            self._counts = {h: (count // 2, size) for h, (count, size) in kept}

    def is_due(self) -> bool:
        """Whether this lookup is one to record."""
        self._lookups += 1
        return self._lookups % _SAMPLED_EVERY == 0

    def top(self, limit: int) -> list[HotPrefix]:
        """The most used first. O(capacity)."""
        ranked = sorted(self._counts.items(), key=lambda entry: -entry[1][0])
        return [
            HotPrefix(BlockHash(block_hash), blocks, _SAMPLED_EVERY * count)
            for block_hash, (count, blocks) in ranked[:limit]
        ]
