"""What a replica tells the index about its cache, as values and as bytes.

Layout of both messages, little-endian: the header below, the replica's id in UTF-8 padded to a
multiple of 8 bytes, then per stored run its parent (u64), then its tier and length (2 x u32), then
per removed group tier and length (2 x u32), then all hashes (u64) in the same order.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from router.core.errors import MalformedMessage
from router.core.types import Incarnation, ReplicaId, Tier

Hashes = NDArray[np.uint64]

_TIERS = tuple(Tier)

NO_PARENT = 0
"""The parent of a run whose chain starts with it, or whose parent the sender does not know."""

_HEADER = struct.Struct("<4sBBHIIQQII")
_GROUP = struct.Struct("<II")
_BATCH, _SNAPSHOT = b"WPE1", b"WPS1"


@dataclass(frozen=True, slots=True)
class StoredRun:
    """Consecutive blocks of one chain that became reusable on a tier; `hashes` has shape [blocks].

    The first block's parent is `parent`, each other's the one before it.
    """

    tier: Tier
    parent: int
    hashes: Hashes


@dataclass(frozen=True, slots=True)
class RemovedRun:
    """Consecutive blocks of one chain, in its order, that are no longer reusable on a tier."""

    tier: Tier
    hashes: Hashes


@dataclass(frozen=True, slots=True)
class EventBatch:
    """The net change of one replica's cache since its batch before.

    Applied in the order cleared tiers, removed, stored. `seq` counts batches from 0 in each
    incarnation. An empty batch renews the lease.
    """

    replica_id: ReplicaId
    incarnation: Incarnation
    seq: int
    stored: tuple[StoredRun, ...] = ()
    removed: tuple[RemovedRun, ...] = ()
    cleared: tuple[Tier, ...] = ()

    @property
    def blocks(self) -> int:
        return _blocks(self.stored) + _blocks(self.removed)

    def pack(self) -> bytes:
        cleared = sum(1 << tier for tier in self.cleared)
        head = (self.replica_id, self.incarnation, self.seq)
        return _pack(_BATCH, head, cleared, 0, self.stored, self.removed)

    @classmethod
    def unpack(cls, data: bytes | memoryview) -> "EventBatch":
        """Raises `MalformedMessage`. The hashes are views of `data`."""
        (replica_id, incarnation, seq), cleared, _, stored, removed = _unpack(_BATCH, data)
        tiers = tuple(tier for tier in Tier if cleared >> tier & 1) if cleared else ()
        return cls(replica_id, incarnation, seq, stored, removed, tiers)


@dataclass(frozen=True, slots=True)
class SnapshotChunk:
    """A part of everything that one replica holds, as of its batch `seq` (-1: before any).

    `index` counts the chunks from 0; the last one completes the snapshot.
    """

    replica_id: ReplicaId
    incarnation: Incarnation
    seq: int
    index: int
    is_last: bool
    stored: tuple[StoredRun, ...] = ()

    @property
    def blocks(self) -> int:
        return _blocks(self.stored)

    def pack(self) -> bytes:
        head = (self.replica_id, self.incarnation, self.seq + 1)
        return _pack(_SNAPSHOT, head, int(self.is_last), self.index, self.stored, ())

    @classmethod
    def unpack(cls, data: bytes | memoryview) -> "SnapshotChunk":
        """Raises `MalformedMessage`. The hashes are views of `data`."""
        (replica_id, incarnation, after), is_last, index, stored, _ = _unpack(_SNAPSHOT, data)
        return cls(replica_id, incarnation, after - 1, index, bool(is_last), stored)


_Head = tuple[ReplicaId, Incarnation, int]


def _blocks(groups: Sequence[StoredRun | RemovedRun]) -> int:
    return sum(len(group.hashes) for group in groups)


def _pack(
    kind: bytes,
    head: _Head,
    flags: int,
    index: int,
    stored: Sequence[StoredRun],
    removed: Sequence[RemovedRun],
) -> bytes:
    replica_id, incarnation, seq = head
    name = replica_id.encode()
    counts = len(stored), len(removed)
    header = _HEADER.pack(kind, flags, 0, len(name), index, 0, incarnation, seq, *counts)
    groups: list[StoredRun | RemovedRun] = [*stored, *removed]
    return b"".join(
        (
            header,
            name.ljust(-len(name) % 8 + len(name), b"\0"),
            struct.pack(f"<{len(stored)}Q", *(run.parent for run in stored)),
            *(_GROUP.pack(group.tier, len(group.hashes)) for group in groups),
            *(group.hashes.astype("<u8", copy=False).tobytes() for group in groups),
        )
    )


def _unpack(
    kind: bytes, data: bytes | memoryview
) -> tuple[_Head, int, int, tuple[StoredRun, ...], tuple[RemovedRun, ...]]:
    try:
        return _unpack_checked(kind, data)
    except (struct.error, ValueError, IndexError) as error:
        raise MalformedMessage(f"malformed event message: {error}") from error


def _unpack_checked(
    kind: bytes, data: bytes | memoryview
) -> tuple[_Head, int, int, tuple[StoredRun, ...], tuple[RemovedRun, ...]]:
    found, flags, _, name_bytes, index, _, incarnation, seq, runs, groups = _HEADER.unpack_from(
        data
    )
    if found != kind:
        raise ValueError(f"kind {bytes(found)!r}")
    at = _HEADER.size
    name = bytes(data[at : at + name_bytes]).decode()
    at += name_bytes + -name_bytes % 8
    parents = struct.unpack_from(f"<{runs}Q", data, at)
    at += 8 * runs
    shapes = struct.unpack_from(f"<{2 * (runs + groups)}I", data, at)
    at += 8 * (runs + groups)
    if 8 * sum(shapes[1::2]) != len(data) - at:
        raise ValueError("length")
    hashes = np.frombuffer(data, "<u8", offset=at).astype(np.uint64, copy=False)
    stored, removed, start = [], [], 0
    for group, (tier, length) in enumerate(zip(shapes[::2], shapes[1::2], strict=True)):
        part = hashes[start : start + length]
        start += length
        if group < runs:
            stored.append(StoredRun(_TIERS[tier], parents[group], part))
        else:
            removed.append(RemovedRun(_TIERS[tier], part))
    head = (ReplicaId(name), Incarnation(incarnation), seq)
    return head, flags, index, tuple(stored), tuple(removed)
