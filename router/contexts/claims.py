"""Which stored objects contexts claim: answered when a store asks, kept nowhere else.

A context keeps the hashes of the blocks that end its objects, as its ingress computed them: packed
little-endian u64. A store that asks now and then, and drops what nobody claims any more, needs no
word of each context that goes.
"""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from router.contexts.context import Context, Moment

Marks = NDArray[np.bool_]


def claims_on(model: str, contexts: Iterable[Context]) -> bytes:
    """All hashes that contexts of a model claim, some of them several times. O(contexts)."""
    return b"".join([context.claims for context in contexts if context.model == model])


def marked(asked: bytes, claims: bytes) -> Marks:
    """Which of the hashes in `asked` are among `claims` [hashes]. O(claims · log asked).

    Raises `ValueError` where either is no whole number of hashes.
    """
    hashes, claimed = np.frombuffer(asked, "<u8"), np.frombuffer(claims, "<u8")
    if not len(hashes):
        return np.zeros(0, np.bool_)
    order = np.argsort(hashes, kind="stable")
    places = np.searchsorted(hashes[order], claimed).clip(max=len(hashes) - 1)
    found = np.unique(places[hashes[order][places] == claimed])
    return np.isin(hashes, hashes[order][found])


def oldest_turn_s(model: str, contexts: Iterable[Context], now: Moment) -> float:
    """For how long the oldest of a model's open turns has been open: what it has had saved is not
    claimed yet. 0 without one. O(contexts)."""
    began = (c.last_used_at for c in contexts if c.turn is not None and c.model == model)
    return max((now.wall - at for at in began), default=0.0)
