"""What people and successors ask the block index: sizes, explanations, copies. Reads only."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from router.core.block_table import OFFSET_BITS, Hashes, Places
from router.core.chain_map import ChainMap, runs_of
from router.core.events import NO_PARENT, SnapshotChunk, StoredRun
from router.core.streams import Stream, Streams
from router.core.types import ReplicaId, Tier


@dataclass(frozen=True, slots=True)
class IndexStats:
    """Sizes now and counters since the start; blocks are distinct hashes.

    `lost_hints` are entries that a full table of sets, bookings or lanes could not take.
    `incomplete_replicas` have a gap or a snapshot under way.
    """

    replicas: int
    incomplete_replicas: int
    blocks: int
    dead_blocks: int
    segments: int
    holder_sets: int
    bookings: int
    stored_blocks: int
    evicted_blocks: int
    unknown_removals: int
    gaps: int
    snapshots_in_place: int
    lost_hints: int
    outcomes: dict[str, int]


class IndexReports:
    """Reads one chain map and its streams; see each method for what it costs."""

    def __init__(self, chains: ChainMap, streams: Streams) -> None:
        self._chains = chains
        self._streams = streams

    def blocks_by_replica(self) -> dict[ReplicaId, tuple[int, int, int]]:
        """Blocks held by tier, GPU first. O(replicas · holder sets)."""
        sets = self._chains.sets
        return {
            replica_id: (
                sets.blocks_of(stream.slot, Tier.GPU),
                sets.blocks_of(stream.slot, Tier.CPU),
                sets.blocks_of(stream.slot, Tier.STORAGE),
            )
            for replica_id, stream in self._streams.by_replica.items()
        }

    def snapshots(
        self, replica_ids: Sequence[ReplicaId], chunk_blocks: int
    ) -> Iterator[SnapshotChunk]:
        """All that is known of each registered replica, as of its last applied batch.

        All blocks are read and sorted once, when the iteration starts, in O(lanes + blocks · log
        blocks); a replica then costs its own segments. A replica's chunks are cut when its turn
        comes: for several of them nothing may change meanwhile.
        """
        lanes = self._chains.table.window(0, self._chains.table.total_lanes)
        lanes = lanes[self._chains.table.places[lanes].argsort()]
        places, hashes = self._chains.table.places[lanes], self._chains.table.keys_at(lanes)
        for replica_id in replica_ids:
            stream = self._streams.by_replica[replica_id]
            runs = list(self._runs(stream, places, hashes, chunk_blocks))
            yield from _chunks(replica_id, stream, runs, chunk_blocks)

    def _runs(
        self, stream: Stream, places: Places, hashes: Hashes, longest: int
    ) -> Iterator[StoredRun]:
        """What the replica holds of all blocks, given in the order of their places."""
        fields, sets = self._chains.segments, self._chains.sets
        holds = np.zeros(len(sets.blocks), bool)
        holds[sets.numbers_of(stream.slot)] = True
        held = fields.live()
        held = held[holds[fields.holders_array[held]]]
        firsts = places.searchsorted(held << OFFSET_BITS).tolist()
        ends = places.searchsorted((held + 1) << OFFSET_BITS).tolist()
        for segment, first, end in zip(held.tolist(), firsts, ends, strict=True):
            holders = fields.holders[segment]
            tiers = [tier for tier in Tier if sets.holds(holders, stream.slot, tier)]
            for start, stop in runs_of(places[first:end]):
                run = hashes[first + start : first + stop]
                yield from _cut(run, tiers, longest)


def _cut(hashes: Hashes, tiers: Sequence[Tier], longest: int) -> Iterator[StoredRun]:
    """Consecutive blocks that lie on all of `tiers`, as runs of at most `longest` blocks."""
    for at in range(0, len(hashes), longest):
        parent = int(hashes[at - 1]) if at else NO_PARENT
        for tier in tiers:
            yield StoredRun(tier, parent, hashes[at : at + longest])


def _chunks(
    replica_id: ReplicaId, stream: Stream, runs: list[StoredRun], chunk_blocks: int
) -> Iterator[SnapshotChunk]:
    """At least one."""
    head = replica_id, stream.incarnation, stream.next_seq - 1
    parts = list(_packed(runs, chunk_blocks)) or [[]]
    for index, part in enumerate(parts):
        yield SnapshotChunk(*head, index, index == len(parts) - 1, tuple(part))


def _packed(runs: list[StoredRun], chunk_blocks: int) -> Iterator[list[StoredRun]]:
    """Groups runs of at most `chunk_blocks` blocks each into chunks of at most as many."""
    part: list[StoredRun] = []
    blocks = 0
    for run in runs:
        if part and blocks + len(run.hashes) > chunk_blocks:
            yield part
            part, blocks = [], 0
        part.append(run)
        blocks += len(run.hashes)
    if part:
        yield part
