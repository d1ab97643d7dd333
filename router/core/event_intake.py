"""Applies what replicas tell: batches in their order, snapshots in one stroke, lives that end."""

from collections.abc import Sequence

from router.core.block_table import Hashes
from router.core.chain_edits import MAX_EDIT_BLOCKS, ChainEditor
from router.core.chain_map import ChainMap
from router.core.events import EventBatch, SnapshotChunk, StoredRun
from router.core.room import Room
from router.core.speculation import Speculation
from router.core.streams import ApplyResult, Loading, Outcome, Stream, Streams
from router.core.types import Incarnation, ReplicaId, Slot, Tier


class EventIntake:
    """Writes confirmed blocks into `chains`, one column of the holder sets per replica.

    `spare_columns` hold snapshots while they are loaded beside what they are to replace.
    """

    def __init__(
        self,
        chains: ChainMap,
        room: Room,
        speculation: Speculation,
        streams: Streams,
        spare_columns: list[int],
    ) -> None:
        self.unknown_removals = 0
        self.snapshots_in_place = 0
        self._chains = chains
        self._sets = chains.sets
        self._editor = ChainEditor(chains)
        self._room = room
        self._speculation = speculation
        self._streams = streams
        self._spare_columns = spare_columns

    def register(self, replica_id: ReplicaId, incarnation: Incarnation) -> Slot:
        """Begins a life of a replica, which holds nothing; the same life again changes nothing.

        Its batches count from 0; where the first to arrive is a later one, a snapshot is wanted.
        Raises `RegistrationRefused` for an older life and when all slots are taken.
        """
        before = self._streams.by_replica.get(replica_id)
        slot, is_new = self._streams.register(replica_id, incarnation)
        if before is not None and is_new:
            self._erase(before)
        return slot

    def forget(self, replica_id: ReplicaId) -> None:
        """The replica is gone with all its blocks and speculative entries. Idempotent.

        O(holder sets), not O(blocks).
        """
        stream = self._streams.forget(replica_id)
        if stream is not None:
            self._erase(stream)

    def _erase(self, stream: Stream) -> None:
        self._abandon(stream)
        self._clear(stream.slot, tuple(Tier))
        self._speculation.retract_slot(stream.slot)

    def apply(self, batch: EventBatch) -> ApplyResult:
        """Applies a batch if it is the next of its replica's life, and the held ones after it.

        A batch ahead of its turn is held and a snapshot is wanted; should the missing ones still
        arrive first, they are applied in order. O(blocks), for long batches of single blocks up to
        a few microseconds each.
        """
        outcome = self._streams.admit(batch)
        self._streams.count(outcome)
        if outcome is not Outcome.APPLIED:
            is_ahead = outcome in (Outcome.HELD, Outcome.GAP)
            return ApplyResult(outcome, is_ahead and not self._is_loading(batch.replica_id))
        stream = self._streams.by_replica[batch.replica_id]
        blocks = self._apply_all(stream, batch)
        return ApplyResult(outcome, stream.is_behind, blocks)

    def load_snapshot(self, chunk: SnapshotChunk) -> ApplyResult:
        """Loads a part of all that a replica holds; the last part replaces what was known of it.

        Until then the index answers from what was known. Batches that arrive meanwhile are held
        and those after the snapshot's `seq` applied at its end.
        """
        outcome = self._streams.admit_chunk(chunk)
        self._streams.count(outcome)
        stream = self._streams.by_replica.get(chunk.replica_id)
        if outcome is Outcome.OUT_OF_ORDER and stream is not None:
            self._abandon(stream)
        if outcome is not Outcome.APPLIED or stream is None:
            return ApplyResult(outcome, outcome is Outcome.OUT_OF_ORDER)
        loading = self._loading(stream, chunk)
        for run in chunk.stored:
            self._store(stream.slot, loading.column, run)
        self._room.relieve(chunk.blocks)
        if chunk.is_last:
            self._promote(stream, loading)
        return ApplyResult(outcome, stream.is_behind, chunk.blocks)

    def _apply_all(self, stream: Stream, batch: EventBatch | None) -> int:
        blocks = 0
        while batch is not None:
            self._apply_one(stream.slot, batch)
            blocks += batch.blocks
            stream.next_seq += 1
            batch = stream.pop_next()
        return blocks

    def _apply_one(self, slot: Slot, batch: EventBatch) -> None:
        if batch.cleared:
            self._clear(slot, batch.cleared)
        for group in batch.removed:
            self._remove(slot, group.tier, group.hashes)
        for run in batch.stored:
            self._store(slot, slot, run)
        self._room.relieve(batch.blocks)

    def _store(self, slot: Slot, column: int, run: StoredRun) -> None:
        sets, tier, parent = self._sets, run.tier, run.parent
        for start in range(0, len(run.hashes), MAX_EDIT_BLOCKS):
            part = run.hashes[start : start + MAX_EDIT_BLOCKS]
            if start:
                self._room.relieve(len(part))
            self._editor.place(parent, part, lambda held: sets.added(held, column, tier))
            parent = int(part[-1])
        if tier is Tier.GPU and column == slot:
            self._speculation.confirm(slot, run.hashes)

    def _remove(self, slot: Slot, tier: Tier, hashes: Hashes) -> None:
        sets = self._sets
        known = self._editor.alter(hashes, lambda held: sets.removed(held, slot, tier))
        self.unknown_removals += len(hashes) - known

    def _clear(self, column: int, tiers: Sequence[Tier]) -> None:
        self._chains.empty_holders(self._sets.clear_column(column, tiers))

    def _is_loading(self, replica_id: ReplicaId) -> bool:
        return self._streams.by_replica[replica_id].loading is not None

    def _loading(self, stream: Stream, chunk: SnapshotChunk) -> Loading:
        if chunk.index and stream.loading is not None:
            stream.loading.next_index += 1
            return stream.loading
        self._abandon(stream)
        stream.loading = Loading(chunk.seq, self._column_to_fill(stream.slot))
        return stream.loading

    def _column_to_fill(self, slot: Slot) -> int:
        """A spare column, or the replica's own where it is empty or no spare one is left."""
        if not self._sets.numbers_of(slot).size:
            return slot
        if self._spare_columns:
            return self._spare_columns.pop()
        self.snapshots_in_place += 1
        self._clear(slot, tuple(Tier))
        return slot

    def _promote(self, stream: Stream, loading: Loading) -> None:
        stream.loading = None
        stream.next_seq = loading.seq + 1
        if loading.column != stream.slot:
            self._spare_columns.append(loading.column)
            self._chains.empty_holders(self._sets.move_column(loading.column, stream.slot))
            self._speculation.confirm_all(stream.slot)
        self._apply_all(stream, stream.pop_next())

    def _abandon(self, stream: Stream) -> None:
        loading, stream.loading = stream.loading, None
        if loading is None:
            return
        self._clear(loading.column, tuple(Tier))
        if loading.column != stream.slot:
            self._spare_columns.append(loading.column)
