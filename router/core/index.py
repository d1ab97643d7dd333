"""The block index: which replica holds which block, by tier, and what bookings are about to add.

Synchronous and pure: time is an argument, nothing waits, no call touches more than its own blocks
and segments. Wrong order, doubles and unknown senders are answered, counted and harmless.
"""

from collections.abc import Iterator, Sequence

from router.core.block_table import Hashes
from router.core.chain_map import ChainMap
from router.core.event_intake import EventIntake
from router.core.events import EventBatch, SnapshotChunk
from router.core.holder_sets import HolderSets
from router.core.hot_prefixes import HotPrefix, HotPrefixes
from router.core.index_reports import IndexReports, IndexStats
from router.core.overlap import Overlap, OverlapReader
from router.core.room import Room
from router.core.speculation import Speculation
from router.core.store_directory import StoreDirectory, StoredPiece
from router.core.streams import ApplyResult, Streams
from router.core.types import BookingId, Incarnation, ReplicaId, Slot, StoreId, Tier

_SNAPSHOT_COLUMNS = 32
"""At least so many snapshots can be loaded beside what they replace, at one time."""


class BlockIndex:
    """At most `max_blocks` distinct blocks, `max_replicas` replicas and `max_bookings` bookings
    with speculative entries. Memory is reserved at once and used as it fills. Past the cap the
    least recently used prefixes go.

    `hashes` are always the chained block hashes of one prompt in order: uint64 [blocks].
    """

    def __init__(self, max_blocks: int, max_replicas: int, max_bookings: int = 16_384) -> None:
        columns = -(-(max_replicas + _SNAPSHOT_COLUMNS) // 64) * 64
        sets = HolderSets(max(4096, max_blocks // 8), columns, max_replicas)
        self._chains = ChainMap(max_blocks, sets)
        self._room = Room(self._chains, max_blocks)
        self._streams = Streams(max_replicas)
        self._speculation = Speculation(self._chains, max_bookings)
        self._intake = EventIntake(
            self._chains,
            self._room,
            self._speculation,
            self._streams,
            list(range(max_replicas, columns)),
        )
        self._reader = OverlapReader(self._chains, max_replicas)
        self._reports = IndexReports(self._chains, self._streams)
        self._stores = StoreDirectory(max_blocks)
        self._hot = HotPrefixes(256)

    def register(self, replica_id: ReplicaId, incarnation: Incarnation) -> Slot:
        """Begins a life of a replica, which holds nothing; the same life again changes nothing.

        Its batches count from 0; where the first to arrive is a later one, a snapshot is wanted.
        Raises `RegistrationRefused` for an older life and when all slots are taken.
        """
        return self._intake.register(replica_id, incarnation)

    def forget(self, replica_id: ReplicaId) -> None:
        """The replica is gone with all its blocks and speculative entries. Idempotent.

        O(holder sets), not O(blocks).
        """
        self._intake.forget(replica_id)

    def apply(self, batch: EventBatch) -> ApplyResult:
        """Applies a batch if it is the next of its replica's life, and the held ones after it.

        A batch ahead of its turn is held and a snapshot is wanted; should the missing ones still
        arrive first, they are applied in order. O(blocks).
        """
        return self._intake.apply(batch)

    def load_snapshot(self, chunk: SnapshotChunk) -> ApplyResult:
        """Loads a part of all that a replica holds; the last part replaces what was known of it.

        Until then the index answers from what was known. Batches that arrive meanwhile are held;
        those after the snapshot's `seq` are applied at its end. O(blocks).
        """
        return self._intake.load_snapshot(chunk)

    def overlaps(self, hashes: Hashes) -> Overlap:
        """How much of a prompt each replica holds. O(segments · log blocks + max_replicas)."""
        pieces = self._chains.walk(hashes)
        if pieces and self._hot.is_due():
            blocks = pieces[0][0]
            self._hot.record(int(hashes[blocks - 1]), blocks)
        tiers = self._reader.tiers(pieces)
        return Overlap(tiers, self._speculation.extend(hashes, pieces, tiers[Tier.GPU]))

    def speculate(
        self, booking_id: BookingId, slot: Slot, hashes: Hashes, expires_at: float
    ) -> None:
        """Expects the blocks of a prompt on a replica until `expires_at`.

        From the first one that its GPU lacks at this moment: an engine computes that and all after
        it. `hashes` may leave out leading blocks that it holds. Events that store the next expected
        blocks end the expectation of them: should they be evicted before the booking ends, they are
        gone. A booking that speculates again gives up its earlier entries. O(segments).
        """
        self._speculation.add(booking_id, slot, hashes, expires_at)

    def expect(self, booking_id: BookingId, slot: Slot, missing: Hashes, expires_at: float) -> None:
        """As `speculate`, for who has just looked the prompt up: O(1) but for a copy.

        `missing` begins with the first block of the prompt that the replica's GPU lacks.
        """
        self._speculation.add_missing(booking_id, slot, missing, expires_at)

    def retract(self, booking_id: BookingId) -> None:
        """Ends a booking's speculative entries and no other's. Idempotent."""
        self._speculation.retract(booking_id)

    def sweep(self, now: float) -> None:
        """For a timer: ends expired speculative entries and takes back memory in a bounded step."""
        self._speculation.sweep(now)
        self._room.reclaim()

    def add_stored(self, hashes: Hashes, store_id: StoreId, key: bytes) -> None:
        """These blocks lie in a store's object."""
        self._stores.add(hashes, store_id, key)

    def remove_stored(self, hashes: Hashes, store_id: StoreId, key: bytes) -> None:
        self._stores.remove(hashes, store_id, key)

    def forget_store(self, store_id: StoreId) -> int:
        """The store is gone; returns how many blocks it held. O(stored objects)."""
        return self._stores.forget(store_id)

    def stored(self, hashes: Hashes) -> Sequence[StoredPiece]:
        """The objects that hold any of a prompt's blocks; see `StoreDirectory.find`."""
        return self._stores.find(hashes) if len(self._stores) else ()

    def stored_blocks(self, ends: Hashes) -> list[int]:
        """Blocks of the stored object that ends in each of these hashes; 0 where there is none."""
        return self._stores.blocks_of(ends)

    def applied_seq(self, replica_id: ReplicaId) -> int | None:
        """The last of the replica's batches that is in here; None where there is none yet."""
        stream = self._streams.by_replica.get(replica_id)
        return stream.next_seq - 1 if stream is not None and stream.next_seq else None

    def hottest(self, limit: int) -> list[HotPrefix]:
        """The prefixes that most lookups share, with sampled counts."""
        return self._hot.top(limit)

    def blocks_by_replica(self) -> dict[ReplicaId, tuple[int, int, int]]:
        """Blocks held by tier, GPU first. O(replicas · holder sets)."""
        return self._reports.blocks_by_replica()

    def snapshot(self, replica_id: ReplicaId, chunk_blocks: int = 1024) -> Iterator[SnapshotChunk]:
        """All that is known of a registered replica, for another index to load. O(max_blocks)."""
        return self._reports.snapshots([replica_id], chunk_blocks)

    def snapshots(self, chunk_blocks: int = 1024) -> Iterator[SnapshotChunk]:
        """As `snapshot` for all replicas, one after the other. O(max_blocks) once, then O(what is
        held). The index is not to change meanwhile."""
        return self._reports.snapshots(list(self._streams.by_replica), chunk_blocks)

    def stats(self) -> IndexStats:
        chains, streams = self._chains, self._streams
        return IndexStats(
            replicas=len(streams.by_replica),
            incomplete_replicas=streams.incomplete(),
            blocks=chains.live_blocks,
            dead_blocks=chains.dead_blocks,
            segments=len(chains.segments),
            holder_sets=len(chains.sets),
            bookings=len(self._speculation),
            stored_blocks=len(self._stores),
            evicted_blocks=self._room.evicted_blocks,
            unknown_removals=self._intake.unknown_removals,
            gaps=streams.gaps,
            snapshots_in_place=self._intake.snapshots_in_place,
            lost_hints=chains.sets.exhausted + self._speculation.refused + chains.table.refused,
            outcomes={outcome.value: count for outcome, count in streams.outcomes.items()},
        )

    def check_integrity(self) -> None:
        """Asserts that all parts agree. O(max_blocks)."""
        self._chains.check_integrity()
        self._speculation.check_integrity()
        assert self._chains.live_blocks >= 0
