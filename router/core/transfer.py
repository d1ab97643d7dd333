"""Stored blocks on their way to an engine and back: what a request loads, and what is kept of it.

Values only. A decision names the loads, the engine's KV connector obeys or loads less.
"""

from enum import StrEnum

import msgspec

from router.core.types import StoreId


class Keeping(StrEnum):
    """What a request's blocks are saved for."""

    NOTHING = "nothing"
    CONTEXT = "context"
    """A context claims them: they stay while there is room, and go with the context."""
    REUSE = "reuse"
    """Anybody of the tenant may want them again."""


class StoredRun(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """`blocks` blocks of a prompt's chain from `first_block` on, in one object; `key` packed."""

    first_block: int
    blocks: int
    store_id: StoreId
    key: bytes


class TransferRequest(msgspec.Struct, frozen=True, gc=False):
    """What one request is to load, in the order of the chain, and what its blocks are kept for.

    Kept for reuse are its first `reuse_blocks`, those that were seen before; for a context, all.
    """

    loads: tuple[StoredRun, ...] = ()
    keeping: Keeping = Keeping.NOTHING
    reuse_blocks: int = 0
