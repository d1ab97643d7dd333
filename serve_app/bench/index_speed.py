"""Times of the block index beside Dynamo's, both sides in turns on the same steps."""

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from router.core.events import NO_PARENT, EventBatch, StoredRun
from router.core.hashing import hash_blocks
from router.core.index import BlockIndex
from router.core.types import BookingId, Incarnation, ReplicaId, Slot, Tier
from serve_app.bench.index_sides import (
    Call,
    Dynamo,
    Ours,
    Side,
    as_depths,
    dynamo_core,
    resident_bytes,
)
from serve_app.bench.index_workload import Hashes, Step, Traffic

_FILL_BLOCKS = 400_000
_ROUND_BLOCKS = 40_000
_ROUND_QUESTIONS = 200
_BOOKINGS = 256
_SEQUENCES = 64


@dataclass(frozen=True, slots=True)
class Timing:
    """Microseconds a call by round, for both sides; a round's value is the mean of its calls."""

    ours_us: tuple[float, ...]
    dynamo_us: tuple[float, ...]

    @property
    def ratios(self) -> list[float]:
        """How many times as long Dynamo took, by round."""
        return [d / o for o, d in zip(self.ours_us, self.dynamo_us, strict=True)]

    @property
    def ratio(self) -> float:
        return statistics.median(self.ratios)


@dataclass(frozen=True, slots=True)
class Comparison:
    """One configuration. A step stores a prompt on a replica or removes one."""

    replicas: int
    prompt_blocks: int
    apply: Timing
    find: Timing
    decode: Timing


def compare(replicas: int, prompt_blocks: int, rounds: int) -> Comparison:
    """Fills both sides alike, checks that they answer alike, then times them in turns."""
    traffic = Traffic(replicas, prompt_blocks)
    ours, dynamo = Ours(replicas, 2 * _FILL_BLOCKS), Dynamo()
    _fill(traffic, ours, dynamo)
    _check_alike(traffic, ours, dynamo)
    applied, found, decoded = [], [], []
    for turn in range(rounds):
        sides: tuple[Side, Side] = (ours, dynamo)
        steps = list(_churn(traffic))
        applied.append(_in_turns(turn, *([side.apply(step) for step in steps] for side in sides)))
        asked = [traffic.question() for _ in range(_ROUND_QUESTIONS)]
        found.append(_in_turns(turn, *([side.find(prompt) for prompt in asked] for side in sides)))
        decoded.append(_decode_round(turn, traffic, ours, dynamo))
    return Comparison(
        replicas, prompt_blocks, *(_timing(pairs) for pairs in (applied, found, decoded))
    )


def _fill(traffic: Traffic, ours: Ours, dynamo: Dynamo) -> None:
    for number in range(_FILL_BLOCKS // traffic.prompt_blocks):
        for step in traffic.store(holders=2):
            ours.apply(step)()
            dynamo.apply(step)()
        if number % 8 == 0:
            ours.apply(traffic.copy_to_cpu())()
    for step in traffic.start_decoding(_SEQUENCES):
        ours.apply(step)()
        dynamo.apply(step)()
    ours.book(traffic, _BOOKINGS)


def _churn(traffic: Traffic) -> Iterator[Step]:
    for _ in range(max(1, _ROUND_BLOCKS // (4 * traffic.prompt_blocks))):
        yield from traffic.store(holders=2)
        yield traffic.evict()
        yield traffic.evict()


def _check_alike(traffic: Traffic, ours: Ours, dynamo: Dynamo) -> None:
    for _ in range(50):
        prompt = traffic.question()
        overlap = ours.index.overlaps(prompt.chained)
        scores = dynamo.tree.find_matches(prompt.content.tolist()).scores
        assert overlap.tiers[Tier.GPU].tolist() == as_depths(scores, traffic.replicas)


def _decode_round(turn: int, traffic: Traffic, ours: Ours, dynamo: Dynamo) -> tuple[float, float]:
    """Microseconds a block: ours as one batch per 20 ms, Dynamo's as one event per block."""
    batches = [traffic.decode() for _ in range(8)]
    mine = [ours.apply_together(steps) for steps in batches]
    theirs = [dynamo.apply(step) for steps in batches for step in steps]
    mine_us, theirs_us = _in_turns(turn, mine, theirs)
    return mine_us / _SEQUENCES, theirs_us


def _in_turns(turn: int, ours: Sequence[Call], dynamo: Sequence[Call]) -> tuple[float, float]:
    """Mean microseconds a call of each side; every other round the other side begins."""
    if turn % 2:
        dynamo_us = _mean_us(dynamo)
        return _mean_us(ours), dynamo_us
    return _mean_us(ours), _mean_us(dynamo)


def _mean_us(calls: Sequence[Call]) -> float:
    """Without the slowest tenth, which on a busy machine is other processes' time."""
    times = []
    for call in calls:
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    times.sort()
    kept = times[: max(1, len(times) * 9 // 10)]
    return statistics.fmean(kept) * 1e6


def _timing(pairs: Sequence[tuple[float, float]]) -> Timing:
    ours, dynamo = zip(*pairs, strict=True)
    return Timing(ours, dynamo)


def bytes_per_block(side: str, replicas: int, prompt_blocks: int, blocks: int) -> float:
    """Growth of this process's resident set per distinct block. Meaningful in a fresh process."""
    traffic = Traffic(replicas, prompt_blocks)
    before = resident_bytes()
    subject: Side = Ours(replicas, blocks) if side == Ours.name else Dynamo()
    for _ in range(blocks // prompt_blocks):
        for step in traffic.store(holders=1):
            subject.apply(step)()
        traffic.forget_old()
    if isinstance(subject, Dynamo):
        subject.tree.find_matches([1])
    return (resident_bytes() - before) / blocks


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Microseconds."""

    p50_us: float
    p99_us: float


def decision_lookup(replicas: int, prompt_blocks: int, *, all_differ: bool) -> Percentiles:
    """One lookup as a decision makes it; `all_differ`: every replica's overlap is another."""
    index = BlockIndex(4 * prompt_blocks, replicas)
    chain = Traffic(replicas, prompt_blocks).fresh(prompt_blocks).chained
    for replica in range(replicas):
        depth = (replica + 1) * prompt_blocks // replicas if all_differ else prompt_blocks
        _give(index, replica, chain[:depth])
    index.speculate(BookingId(1), Slot(0), chain, expires_at=1e9)
    return _percentiles(lambda: index.overlaps(chain), 1000)


def speculation(replicas: int, prompt_blocks: int) -> Percentiles:
    """One booking's speculative entries for a prompt that nobody holds, entered and retracted."""
    index = BlockIndex(1 << 20, replicas)
    traffic = Traffic(replicas, prompt_blocks)
    prompts = [traffic.fresh(prompt_blocks).chained for _ in range(2000)]
    slot = index.register(ReplicaId("replica-0"), Incarnation(1))
    calls = iter(prompts)

    def book_and_retract() -> None:
        index.speculate(BookingId(1), slot, next(calls), expires_at=1e9)
        index.retract(BookingId(1))

    return _percentiles(book_and_retract, 2000)


def hashing(tokens: int, block_size: int, rounds: int) -> Timing:
    """Hashing one prompt: ours from packed ids, Dynamo's from a list."""
    token_ids = np.random.default_rng(1).integers(0, 150_000, tokens, np.uint32)
    packed, listed, core = token_ids.tobytes(), token_ids.tolist(), dynamo_core()
    ours: list[Call] = [lambda: hash_blocks(packed, block_size)] * 50
    theirs: list[Call] = [lambda: core.compute_block_hash_for_seq(listed, block_size)] * 50
    return _timing([_in_turns(turn, ours, theirs) for turn in range(rounds)])


def _give(index: BlockIndex, replica: int, hashes: Hashes) -> None:
    name = ReplicaId(f"replica-{replica}")
    index.register(name, Incarnation(1))
    run = StoredRun(Tier.GPU, NO_PARENT, hashes)
    index.apply(EventBatch(name, Incarnation(1), 0, (run,)))


def _percentiles(call: Callable[[], object], repeats: int) -> Percentiles:
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        times.append((time.perf_counter() - start) * 1e6)
    cuts = statistics.quantiles(times, n=100)
    return Percentiles(cuts[49], cuts[98])
