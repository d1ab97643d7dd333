"""Which stored blocks each candidate would load, what that costs it, and which objects they are.

Pure. A load is offered only where it is measured to be cheaper than computing, and where nothing
has been measured yet: then it is the measurement.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from router.core.store_access import StoreAccess
from router.core.store_directory import StoredPiece
from router.core.transfer import StoredRun
from router.core.types import StoreId, Tier, Value
from router.policies.base import Facts

_GPU, _STORAGE = int(Tier.GPU), int(Tier.STORAGE)


class LoadOffer(Value, frozen=True, eq=False):
    """Of `pieces` to n candidates. `ends` int32 [n]: the block up to which each would load, 0 where
    it would not. `tiers` int32 [3, n] and `shares` float64 [n] are what `Facts` says of it."""

    pieces: Sequence[StoredPiece]
    ends: NDArray[np.int32]
    tiers: NDArray[np.int32]
    shares: NDArray[np.float64]

    def plan(self, position: int, reusable: int, near: StoreId) -> "LoadPlan":
        """For the candidate at `position`: what it would load up to the `reusable`-th block, from
        the store `near` where it has them. O(pieces)."""
        held, end = self.tiers.item(_GPU, position), min(self.ends.item(position), reusable)
        return LoadPlan(end - held, _runs(self.pieces, held, end, near)) if end > held else NO_PLAN


class LoadPlan(Value, frozen=True):
    """`blocks` to be loaded after those that the replica holds, and the objects that hold them."""

    blocks: int = 0
    runs: tuple[StoredRun, ...] = ()


NO_PLAN = LoadPlan()


def load_offer(pieces: Sequence[StoredPiece], facts: Facts, access: StoreAccess) -> LoadOffer:
    """What the candidates could load of `pieces`. O(blocks + n log blocks).

    Blocks that requests on their way there will leave are not counted as a gain.
    """
    reached = reaches(pieces, facts.tiers[_GPU], len(facts.hashes))
    gained = reached - np.maximum(facts.speculative, facts.tiers[_STORAGE])
    shares = access.shares(facts.slots, gained)
    is_worth = (gained > 0) & ~(shares >= 1)
    tiers = facts.tiers.copy()
    tiers[_STORAGE] = np.where(is_worth, reached, tiers[_STORAGE])
    return LoadOffer(pieces, np.where(is_worth, reached, 0).astype(np.int32), tiers, shares)


def reaches(
    pieces: Sequence[StoredPiece], depths: NDArray[np.int32], prompt_blocks: int
) -> NDArray[np.int32]:
    """How far stored blocks reach from `depths` on without a gap [n], at least these."""
    is_missing = np.ones(prompt_blocks + 1, np.bool_)
    for piece in pieces:
        is_missing[piece.first_block : piece.first_block + piece.blocks] = False
    gaps = np.flatnonzero(is_missing)
    reached: NDArray[np.int32] = gaps.take(gaps.searchsorted(depths)).astype(np.int32)
    return reached


def seen_blocks(pieces: Sequence[StoredPiece], confirmed: NDArray[np.int32]) -> int:
    """How much of a prompt was seen before: a block that is held or stored anywhere stands for all
    before it. `confirmed` [max_replicas]: blocks that each replica holds."""
    held: int = confirmed.item(confirmed.argmax())
    return max(held, pieces[-1].first_block + pieces[-1].blocks) if pieces else held


def _runs(
    pieces: Sequence[StoredPiece], first_block: int, end: int, near: StoreId
) -> tuple[StoredRun, ...]:
    return tuple(
        [
            StoredRun(piece.first_block, piece.blocks, *_location(piece, near))
            for piece in pieces
            if piece.first_block < end and piece.first_block + piece.blocks > first_block
        ]
    )


def _location(piece: StoredPiece, near: StoreId) -> tuple[StoreId, bytes]:
    store_id = near if near in piece.keys else next(iter(piece.keys))
    return store_id, piece.keys[store_id]
