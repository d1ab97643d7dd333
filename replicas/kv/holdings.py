"""Copies of blocks by tier, and what changed in net since it was last told. Pure."""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from router.core.events import NO_PARENT, RemovedBlocks, StoredRun
from router.core.types import Tier


class Holdings:
    """How many copies of each block hash lie on each tier; a block is held while there is one."""

    def __init__(self) -> None:
        self._copies: tuple[dict[int, int], ...] = tuple({} for _ in Tier)
        self._parents: dict[int, int] = {}
        # Of every block touched since the last report: was it held on that tier back then?
        self._was_held: dict[tuple[int, Tier], bool] = {}
        self._cleared: set[Tier] = set()

    def __len__(self) -> int:
        return len(self._parents)

    def __contains__(self, block_hash: int) -> bool:
        return block_hash in self._parents

    def add(self, block_hash: int, parent: int, tier: Tier) -> None:
        """One copy more."""
        copies = self._copies[tier]
        count = copies.get(block_hash, 0)
        self._was_held.setdefault((block_hash, tier), count > 0)
        copies[block_hash] = count + 1
        self._parents[block_hash] = parent

    def add_copy(self, block_hash: int, tier: Tier) -> None:
        """One copy more of a block that is held already, on whatever tier."""
        self.add(block_hash, self._parents[block_hash], tier)

    def remove(self, block_hash: int, tier: Tier) -> bool:
        """One copy less; false where there was none."""
        copies = self._copies[tier]
        count = copies.get(block_hash, 0)
        if not count:
            return False
        self._was_held.setdefault((block_hash, tier), True)
        if count > 1:
            copies[block_hash] = count - 1
        else:
            del copies[block_hash]
            self._forget_gone(block_hash)
        return True

    def clear(self, tiers: Sequence[Tier]) -> None:
        """No copy is left on these tiers. O(blocks)."""
        self._cleared.update(tiers)
        self._was_held = {
            (block_hash, tier): was
            for (block_hash, tier), was in self._was_held.items()
            if tier not in tiers
        }
        for tier in tiers:
            gone = list(self._copies[tier])
            self._copies[tier].clear()
            for block_hash in gone:
                self._forget_gone(block_hash)

    @property
    def has_changes(self) -> bool:
        return bool(self._was_held or self._cleared)

    def take_changes(
        self, max_blocks: int
    ) -> tuple[tuple[Tier, ...], tuple[RemovedBlocks, ...], tuple[StoredRun, ...]]:
        """The net changes of at most `max_blocks` touched blocks, oldest touch first."""
        cleared, self._cleared = tuple(sorted(self._cleared)), set()
        touched = list(self._was_held)[:max_blocks]
        stored: tuple[list[int], ...] = tuple([] for _ in Tier)
        removed: tuple[list[int], ...] = tuple([] for _ in Tier)
        for block_hash, tier in touched:
            was, now = self._was_held.pop((block_hash, tier)), block_hash in self._copies[tier]
            if now and not was:
                stored[tier].append(block_hash)
            elif was and not now:
                removed[tier].append(block_hash)
        runs = [run for tier in Tier for run in self._runs(tier, stored[tier], max_blocks)]
        groups = [RemovedBlocks(tier, _packed(removed[tier])) for tier in Tier if removed[tier]]
        return cleared, tuple(groups), tuple(runs)

    def take_all(self, max_run_blocks: int) -> Iterator[StoredRun]:
        """All that is held; changes until now need not be told any more."""
        self._was_held.clear()
        self._cleared.clear()
        held = [(tier, list(self._copies[tier])) for tier in Tier]
        for tier, hashes in held:
            yield from self._runs(tier, hashes, max_run_blocks)

    def _runs(self, tier: Tier, hashes: Iterable[int], longest: int) -> Iterator[StoredRun]:
        """Cuts held blocks into runs in which each block's parent is the one before it."""
        run: list[int] = []
        first_parent = NO_PARENT
        for block_hash in hashes:
            parent = self._parents[block_hash]
            if run and (parent != run[-1] or len(run) == longest):
                yield StoredRun(tier, first_parent, _packed(run))
                run = []
            if not run:
                first_parent = parent
            run.append(block_hash)
        if run:
            yield StoredRun(tier, first_parent, _packed(run))

    def _forget_gone(self, block_hash: int) -> None:
        if not any(block_hash in copies for copies in self._copies):
            self._parents.pop(block_hash, None)


def _packed(hashes: list[int]) -> "np.ndarray[tuple[int], np.dtype[np.uint64]]":
    return np.array(hashes, np.uint64)
