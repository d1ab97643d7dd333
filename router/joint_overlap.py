"""The overlap of a request with several prompts, which all go to one replica. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


class Overlap(Protocol):
    """Leading blocks of one prompt by slot: `tiers` int32 [3, max_replicas], nested depths;
    `speculative` int32 [max_replicas], at least row 0 of `tiers`."""

    @property
    def tiers(self) -> NDArray[np.int32]: ...

    @property
    def speculative(self) -> NDArray[np.int32]: ...


@dataclass(frozen=True, slots=True, eq=False)
class JointOverlap:
    """Sums over prompts; `parts` has each prompt's own."""

    tiers: NDArray[np.int32]
    speculative: NDArray[np.int32]
    parts: tuple[Overlap, ...]


def joined(parts: Sequence[Overlap]) -> JointOverlap:
    """O(prompts · max_replicas). The arrays of a single prompt are not copied."""
    first, *others = parts
    tiers, speculative = first.tiers, first.speculative
    for part in others:
        tiers = tiers + part.tiers
        speculative = speculative + part.speculative
    return JointOverlap(tiers, speculative, tuple(parts))
