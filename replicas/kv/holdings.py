"""Copies of blocks by tier, and what changed in net since it was last told. Pure."""

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from router.core.events import NO_PARENT, RemovedRun, StoredRun
from router.core.types import Tier

OnChange = Callable[[int, Tier, bool], None]
"""Told of a block's first copy on a tier (true) and of its last one gone (false)."""


def _ignore(block_hash: int, tier: Tier, is_held: bool) -> None:
    pass


class Holdings:
    """How many copies of each block hash lie on each tier; a block is held while there is one."""

    def __init__(self, on_change: OnChange = _ignore) -> None:
        self._on_change = on_change
        self._copies: tuple[dict[int, int], ...] = tuple({} for _ in Tier)
        self._parents: dict[int, int] = {}
        # Blocks of which the last report, told now, would say something else; with their parents.
        self._changed: dict[tuple[int, Tier], int] = {}
        self._cleared: set[Tier] = set()

    def __len__(self) -> int:
        return len(self._parents)

    def __contains__(self, block_hash: object) -> bool:
        return block_hash in self._parents

    def add(self, block_hash: int, parent: int, tier: Tier) -> None:
        """One copy more."""
        copies = self._copies[tier]
        count = copies.get(block_hash, 0)
        copies[block_hash] = count + 1
        self._parents[block_hash] = parent
        if not count:
            self._turn(block_hash, tier, is_held=True)

    def add_copy(self, block_hash: int, tier: Tier) -> None:
        """One copy more of a block that is held already, on whatever tier."""
        self.add(block_hash, self._parents[block_hash], tier)

    def remove(self, block_hash: int, tier: Tier) -> bool:
        """One copy less; false where there was none."""
        copies = self._copies[tier]
        count = copies.get(block_hash, 0)
        if not count:
            return False
        if count > 1:
            copies[block_hash] = count - 1
        else:
            del copies[block_hash]
            self._turn(block_hash, tier, is_held=False)
            self._forget_gone(block_hash)
        return True

    def clear(self, tiers: Sequence[Tier]) -> None:
        """No copy is left on these tiers. O(blocks)."""
        self._cleared.update(tiers)
        kept = [(key, parent) for key, parent in self._changed.items() if key[1] not in tiers]
        self._changed = dict(kept)
        for tier in tiers:
            gone = list(self._copies[tier])
            self._copies[tier].clear()
            for block_hash in gone:
                self._on_change(block_hash, tier, False)
                self._forget_gone(block_hash)

    @property
    def has_changes(self) -> bool:
        return bool(self._changed or self._cleared)

    def take_changes(
        self, max_blocks: int
    ) -> tuple[tuple[Tier, ...], tuple[RemovedRun, ...], tuple[StoredRun, ...]]:
        """The net changes of at most `max_blocks` blocks, oldest first."""
        cleared, self._cleared = tuple(sorted(self._cleared)), set()
        stored: tuple[list[int], ...] = tuple([] for _ in Tier)
        removed: tuple[dict[int, int], ...] = tuple({} for _ in Tier)
        for block_hash, tier in list(self._changed)[:max_blocks]:
            parent = self._changed.pop((block_hash, tier))
            if block_hash in self._copies[tier]:
                stored[tier].append(block_hash)
            else:
                removed[tier][block_hash] = parent
        runs = [run for tier in Tier for run in self._runs(tier, stored[tier], max_blocks)]
        gone = [RemovedRun(tier, _packed(run)) for tier in Tier for run in _chains(removed[tier])]
        return cleared, tuple(gone), tuple(runs)

    def take_all(self, chunk_blocks: int) -> list[tuple[StoredRun, ...]]:
        """All that is held, in at least one chunk; changes until now need not be told any more."""
        self._changed.clear()
        self._cleared.clear()
        runs = (run for tier in Tier for run in self._runs(tier, self._copies[tier], chunk_blocks))
        return list(_grouped(runs, chunk_blocks)) or [()]

    def _turn(self, block_hash: int, tier: Tier, *, is_held: bool) -> None:
        """What turns back needs no telling; so this is bounded while nobody takes changes."""
        key = block_hash, tier
        if key in self._changed:
            del self._changed[key]
        else:
            self._changed[key] = self._parents[block_hash]
        self._on_change(block_hash, tier, is_held)

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


def _chains(parents: dict[int, int]) -> Iterator[list[int]]:
    """Cuts blocks, given with their parents in any order, into runs along their chains."""
    heads = [block_hash for block_hash, parent in parents.items() if parent not in parents]
    children = {parent: block_hash for block_hash, parent in parents.items()}
    left = dict.fromkeys(parents)
    for head in (*heads, *parents):
        run: list[int] = []
        block_hash: int | None = head
        while block_hash is not None and block_hash in left:
            del left[block_hash]
            run.append(block_hash)
            block_hash = children.get(block_hash)
        if run:
            yield run


def _packed(hashes: list[int]) -> "np.ndarray[tuple[int], np.dtype[np.uint64]]":
    return np.array(hashes, np.uint64)


def _grouped(runs: Iterable[StoredRun], max_blocks: int) -> Iterator[tuple[StoredRun, ...]]:
    """Runs of at most `max_blocks` blocks each, in groups of at most as many."""
    group: list[StoredRun] = []
    blocks = 0
    for run in runs:
        if group and blocks + len(run.hashes) > max_blocks:
            yield tuple(group)
            group, blocks = [], 0
        group.append(run)
        blocks += len(run.hashes)
    if group:
        yield tuple(group)
