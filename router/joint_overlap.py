"""The overlap of a request with several prompts, which all go to one replica. Pure."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from router.core.store_directory import StoredPiece
from router.core.types import Value


class Overlap(Protocol):
    """Leading blocks of one prompt by slot: `tiers` int32 [3, max_replicas], nested depths;
    `speculative` int32 [max_replicas], at least row 0 of `tiers`."""

    @property
    def tiers(self) -> NDArray[np.int32]: ...

    @property
    def speculative(self) -> NDArray[np.int32]: ...


class JointOverlap(Value, frozen=True, eq=False):
    """Sums over prompts; `parts` has each prompt's own. `stored`: of a single prompt."""

    tiers: NDArray[np.int32]
    speculative: NDArray[np.int32]
    parts: tuple[Overlap, ...]
    stored: Sequence[StoredPiece] = ()


def joined(parts: Sequence[Overlap], stored: Sequence[StoredPiece] = ()) -> JointOverlap:
    """O(prompts · max_replicas). The arrays of a single prompt are not copied."""
    tiers, speculative = parts[0].tiers, parts[0].speculative
    for part in parts[1:]:
        tiers = tiers + part.tiers
        speculative = speculative + part.speculative
    return JointOverlap(tiers, speculative, tuple(parts), stored)
