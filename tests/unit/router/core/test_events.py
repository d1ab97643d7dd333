"""Event messages survive the wire, and nothing else is taken for one."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.errors import MalformedMessage
from router.core.events import EventBatch, RemovedRun, SnapshotChunk, StoredRun
from router.core.types import Incarnation, ReplicaId, Tier

u64 = st.integers(0, (1 << 64) - 1)
tiers = st.sampled_from(Tier)
hashes = st.lists(u64, max_size=5).map(lambda values: np.array(values, np.uint64))
runs = st.lists(st.builds(StoredRun, tiers, u64, hashes), max_size=3).map(tuple)
groups = st.lists(st.builds(RemovedRun, tiers, hashes), max_size=3).map(tuple)
names = st.text(max_size=20).filter(lambda text: "\0" not in text).map(ReplicaId)
cleared = st.lists(tiers, unique=True).map(lambda found: tuple(sorted(found)))
batches = st.builds(
    EventBatch, names, u64.map(Incarnation), st.integers(0, 1 << 40), runs, groups, cleared
)
chunks = st.builds(
    SnapshotChunk,
    names,
    u64.map(Incarnation),
    st.integers(-1, 1 << 40),
    st.integers(0, 1000),
    st.booleans(),
    runs,
)


def plain(message: EventBatch | SnapshotChunk) -> tuple[object, ...]:
    removed = message.removed if isinstance(message, EventBatch) else ()
    rest = (
        (message.seq, message.cleared)
        if isinstance(message, EventBatch)
        else (message.seq, message.index, message.is_last)
    )
    return (
        message.replica_id,
        message.incarnation,
        rest,
        [(run.tier, run.parent, run.hashes.tolist()) for run in message.stored],
        [(group.tier, group.hashes.tolist()) for group in removed],
    )


@given(batches)
def test_batch_survives_the_wire(batch: EventBatch) -> None:
    assert plain(EventBatch.unpack(batch.pack())) == plain(batch)


@given(chunks)
def test_snapshot_chunk_survives_the_wire(chunk: SnapshotChunk) -> None:
    assert plain(SnapshotChunk.unpack(chunk.pack())) == plain(chunk)


@given(st.one_of(st.binary(max_size=200), batches.map(lambda b: b.pack()[:-1])))
def test_garbage_and_cut_messages_are_refused(data: bytes) -> None:
    with pytest.raises(MalformedMessage):
        EventBatch.unpack(data)


def test_a_snapshot_is_no_batch() -> None:
    chunk = SnapshotChunk(ReplicaId("r"), Incarnation(1), 0, 0, True)
    with pytest.raises(MalformedMessage):
        EventBatch.unpack(chunk.pack())


def test_an_unknown_tier_is_refused() -> None:
    run = StoredRun(Tier.STORAGE, 0, np.zeros(1, np.uint64))
    data = bytearray(EventBatch(ReplicaId("r"), Incarnation(1), 0, (run,)).pack())
    data[-16] = 3
    with pytest.raises(MalformedMessage):
        EventBatch.unpack(bytes(data))
