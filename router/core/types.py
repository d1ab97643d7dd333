"""The words of the project as types: ids, tiers and the small values that cross modules.

Nothing here decides or holds state.
"""

from enum import IntEnum
from typing import NewType

import msgspec

ReplicaId = NewType("ReplicaId", str)
"""One Serve replica (its unique id); the same for all lives of an engine inside it."""

Incarnation = NewType("Incarnation", int)
"""One life of a replica or an actor. A later life has a greater number; never reused."""

Slot = NewType("Slot", int)
"""The column of a registered replica in the index's and the ledger's arrays."""

BlockHash = NewType("BlockHash", int)
"""The router's own chained digest of a full block and all before it: unsigned 64 bits."""

EngineBlockHash = NewType("EngineBlockHash", bytes)
"""An engine's opaque digest as its events carry it; integers become 8 big-endian bytes."""

BookingId = NewType("BookingId", int)
"""One routed request in the load ledger: unsigned 64 random bits, made by the ingress."""

Tenant = NewType("Tenant", str)
"""Who an API key belongs to; the unit of isolation."""

StoreId = NewType("StoreId", str)
"""A KV store: the owner of one node's stored KV objects."""


ContextId = NewType("ContextId", str)
"""A stored conversation: `ctx-` and at least 128 random bits. A secret of its tenant's."""


class Value(msgspec.Struct, frozen=True, gc=False):
    """Base of the values that every request needs some of: made in a tenth of the time that a
    frozen dataclass takes, and never looked through by cyclic collection, as they form no cycles.
    """


class Tier(IntEnum):
    """Where a block lies, fastest first."""

    GPU = 0
    CPU = 1
    STORAGE = 2
