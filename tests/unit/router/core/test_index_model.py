"""The block index equals a naive model after any sequence of calls."""

from collections.abc import Callable
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from router.core.events import NO_PARENT, EventBatch, RemovedRun, SnapshotChunk, StoredRun
from router.core.index import BlockIndex
from router.core.streams import Outcome
from router.core.types import BookingId, Incarnation, ReplicaId, Slot, Tier
from tests.unit.router.core.index_model import R1, R2, R3, NaiveIndex, chain

REPLICAS = [R1, R2, R3]
PROMPTS = ["abcdefghij", "abcdexyz", "abq", "mnopqrst", "mnozz", "a", "abcdefghik"]


@st.composite
def runs(draw: st.DrawFn) -> StoredRun:
    text = draw(st.sampled_from(PROMPTS))
    start = draw(st.integers(0, len(text) - 1))
    stop = draw(st.integers(start + 1, len(text)))
    hashes = chain(text)
    knows_parent = start and draw(st.booleans())
    parent = int(hashes[start - 1]) if knows_parent else NO_PARENT
    return StoredRun(draw(tiers), parent, hashes[start:stop])


@st.composite
def removals(draw: st.DrawFn) -> RemovedRun:
    hashes = chain(draw(st.sampled_from(PROMPTS)))
    start = draw(st.integers(0, len(hashes) - 1))
    stop = draw(st.integers(start + 1, len(hashes)))
    return RemovedRun(draw(tiers), hashes[start:stop])


tiers = st.sampled_from([Tier.GPU, Tier.GPU, Tier.CPU, Tier.STORAGE])
replicas = st.sampled_from(REPLICAS)
bookings = st.integers(1, 5).map(BookingId)


@dataclass
class Pair:
    """The index and its model, driven by the same calls."""

    index: BlockIndex
    model: NaiveIndex = field(default_factory=NaiveIndex)
    lives: dict[ReplicaId, int] = field(default_factory=dict)
    seqs: dict[ReplicaId, int] = field(default_factory=dict)
    slots: dict[ReplicaId, Slot] = field(default_factory=dict)
    now: float = 0.0

    def register(self, replica: ReplicaId) -> None:
        self.lives[replica] = self.lives.get(replica, 0) + 1
        self.seqs[replica] = 0
        self.slots[replica] = self.index.register(replica, Incarnation(self.lives[replica]))
        self.model.register(replica)

    def forget(self, replica: ReplicaId) -> None:
        self.index.forget(replica)
        self.model.forget(replica)
        self.slots.pop(replica, None)

    def send(self, replica: ReplicaId, change: Callable[[EventBatch], EventBatch]) -> None:
        batch = change(EventBatch(replica, self._life(replica), self.seqs.get(replica, 0)))
        result = self.index.apply(EventBatch.unpack(batch.pack()))
        if replica not in self.slots:
            assert result.outcome is Outcome.UNKNOWN_REPLICA
            return
        assert result.outcome is Outcome.APPLIED
        assert self.index.apply(batch).outcome is Outcome.DUPLICATE
        self.seqs[replica] += 1
        self.model.apply(batch)

    def load(self, replica: ReplicaId, parts: list[list[StoredRun]], late: StoredRun) -> None:
        """A snapshot in chunks; the batch after it arrives before its last chunk."""
        if replica not in self.slots:
            return
        seq = self.seqs[replica] + 2
        for index, part in enumerate(parts):
            is_last = index == len(parts) - 1
            if is_last:
                after = EventBatch(replica, self._life(replica), seq + 1, (late,))
                wants_more = index == 0
                assert self.index.apply(after).wants_snapshot is wants_more
            chunk = SnapshotChunk(replica, self._life(replica), seq, index, is_last, tuple(part))
            assert self.index.load_snapshot(chunk).outcome is Outcome.APPLIED
        self.seqs[replica] = seq + 2
        self.model.replace(replica, [stored for part in parts for stored in part])
        self.model.apply(EventBatch(replica, self._life(replica), seq + 1, (late,)))

    def speculate(self, booking: BookingId, replica: ReplicaId, text: str, ttl_s: float) -> None:
        if replica in self.slots:
            hashes, slot = chain(text), self.slots[replica]
            self.index.speculate(booking, slot, hashes, self.now + ttl_s)
            self.model.speculate(booking, replica, hashes, self.now + ttl_s)

    def retract(self, booking: BookingId) -> None:
        self.index.retract(booking)
        self.model.retract(booking)

    def sweep(self, elapsed_s: float) -> None:
        self.now += elapsed_s
        self.index.sweep(self.now)
        self.model.sweep(self.now)

    def _life(self, replica: ReplicaId) -> Incarnation:
        return Incarnation(self.lives.get(replica, 1))

    def check(self) -> None:
        self.index.check_integrity()
        hashes = [chain(text) for text in PROMPTS]
        for prompt in hashes:
            overlap = self.index.overlaps(prompt)
            for replica, slot in self.slots.items():
                assert overlap.tiers[:, slot].tolist() == self.model.tiers(replica, prompt)
                assert overlap.speculative[slot] == self.model.speculative(replica, prompt)
            free = [slot for slot in range(3) if slot not in self.slots.values()]
            assert not overlap.tiers[:, free].any()
            assert not overlap.speculative[free].any()
        sizes = self.index.blocks_by_replica()
        assert sizes == {
            replica: tuple(len(blocks) for blocks in held)
            for replica, held in self.model.held.items()
        }


def _store(replica: ReplicaId, stored: list[StoredRun]) -> Callable[[Pair], None]:
    return lambda pair: pair.send(replica, lambda b: _with(b, stored=tuple(stored)))


def _remove(replica: ReplicaId, removed: list[RemovedRun]) -> Callable[[Pair], None]:
    return lambda pair: pair.send(replica, lambda b: _with(b, removed=tuple(removed)))


def _clear(
    replica: ReplicaId, cleared: list[Tier], stored: list[StoredRun]
) -> Callable[[Pair], None]:
    return lambda pair: pair.send(
        replica, lambda b: _with(b, cleared=tuple(cleared), stored=tuple(stored))
    )


def _with(
    batch: EventBatch,
    stored: tuple[StoredRun, ...] = (),
    removed: tuple[RemovedRun, ...] = (),
    cleared: tuple[Tier, ...] = (),
) -> EventBatch:
    return EventBatch(batch.replica_id, batch.incarnation, batch.seq, stored, removed, cleared)


calls = st.one_of(
    st.builds(_store, replicas, st.lists(runs(), min_size=1, max_size=3)),
    st.builds(_store, replicas, st.lists(runs(), min_size=1, max_size=3)),
    st.builds(_remove, replicas, st.lists(removals(), min_size=1, max_size=2)),
    st.builds(
        _clear,
        replicas,
        st.lists(tiers, min_size=1, max_size=3, unique=True),
        st.lists(runs(), max_size=1),
    ),
    st.builds(lambda r: lambda pair: pair.register(r), replicas),
    st.builds(lambda r: lambda pair: pair.forget(r), replicas),
    st.builds(
        lambda r, parts, late: lambda pair: pair.load(r, parts, late),
        replicas,
        st.lists(st.lists(runs(), max_size=3), min_size=1, max_size=3),
        runs(),
    ),
    st.builds(
        lambda b, r, text, ttl_s: lambda pair: pair.speculate(b, r, text, ttl_s),
        bookings,
        replicas,
        st.sampled_from(PROMPTS),
        st.sampled_from([1.0, 3.0]),
    ),
    st.builds(lambda b: lambda pair: pair.retract(b), bookings),
    st.builds(lambda s: lambda pair: pair.sweep(s), st.sampled_from([0.5, 2.0])),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(calls, max_size=30))
def test_index_equals_the_naive_model_after_any_calls(
    sequence: list[Callable[[Pair], None]],
) -> None:
    pair = Pair(BlockIndex(max_blocks=1000, max_replicas=3))
    for replica in (R1, R2):
        pair.register(replica)
    for call in sequence:
        call(pair)
        pair.check()


@settings(max_examples=150, deadline=None)
@given(st.integers(1, 12), st.lists(calls, max_size=30))
def test_a_capped_index_never_claims_more_than_the_naive_model(
    max_blocks: int, sequence: list[Callable[[Pair], None]]
) -> None:
    pair = Pair(BlockIndex(max_blocks, max_replicas=3))
    for replica in (R1, R2):
        pair.register(replica)
    for call in sequence:
        call(pair)
        pair.index.check_integrity()
        assert pair.index.stats().blocks <= max_blocks
        for text in PROMPTS:
            prompt = chain(text)
            overlap = pair.index.overlaps(prompt)
            for replica, slot in pair.slots.items():
                bound = pair.model.tiers(replica, prompt)
                assert (overlap.tiers[:, slot] <= bound).all()
