"""The step scheduler without a clock: passes are completed as soon as they are planned."""

from array import array
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from replicas.sim.chain import HashChain
from replicas.sim.events import BlockStored, KVEvent
from replicas.sim.pool import BlockPool
from replicas.sim.scheduler import Scheduler, SchedulerLimits
from replicas.sim.sequence import Pass, SimSequence, State
from replicas.sim.text import Sampler

BLOCK_SIZE = 4


def sequence(tokens: list[int], max_tokens: int = 1, salt: str | None = None) -> SimSequence:
    packed = array("I", tokens)
    return SimSequence(
        tokens=packed,
        max_tokens=max_tokens,
        sampler=Sampler(packed.tobytes(), 0),
        chain=HashChain(BLOCK_SIZE, salt),
        cache_salt=salt,
    )


@dataclass
class Bench:
    """A scheduler, and everything that its passes did."""

    total_blocks: int = 64
    max_batched_tokens: int = 1000
    max_sequences: int = 16
    passes: list[Pass] = field(default_factory=list)
    events: list[KVEvent] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.pool = BlockPool(self.total_blocks)
        limits = SchedulerLimits(BLOCK_SIZE, self.max_batched_tokens, self.max_sequences)
        self.scheduler = Scheduler(self.pool, limits)

    def add(self, *sequences: SimSequence) -> None:
        for each in sequences:
            self.scheduler.add(each)

    def step(self) -> Pass:
        planned = self.scheduler.plan()
        assert planned is not None
        _, events = self.scheduler.complete(planned)
        self.passes.append(planned)
        self.events += events
        return planned

    def run(self) -> None:
        while self.scheduler.unfinished:
            self.step()
        assert self.scheduler.plan() is None


def test_a_prompt_is_cut_into_chunks_of_the_budget() -> None:
    bench = Bench(max_batched_tokens=4)
    bench.add(sequence(list(range(10)), max_tokens=2))
    bench.run()
    assert [planned.prefill_tokens for planned in bench.passes] == [4, 4, 2, 0]
    assert [planned.decode_sequences for planned in bench.passes] == [0, 0, 0, 1]
    assert bench.passes[-1].decode_context_tokens == 11


def test_decoding_sequences_come_before_waiting_prompts() -> None:
    bench = Bench(max_batched_tokens=5)
    first, second = sequence([1] * 5, max_tokens=3), sequence([2] * 10)
    bench.add(first)
    bench.step()
    bench.add(second)
    assert bench.step().work == {first: 1, second: 4}


def test_sequences_are_admitted_in_order_of_arrival() -> None:
    bench = Bench(max_sequences=2)
    waiting = [sequence([i] * 5, max_tokens=2) for i in range(3)]
    bench.add(*waiting)
    assert list(bench.step().work) == waiting[:2]
    assert waiting[2].state is State.WAITING


def test_the_head_of_the_queue_is_never_overtaken() -> None:
    """A short prompt that would fit waits behind a long one that does not."""
    bench = Bench(total_blocks=5)
    bench.add(sequence([1] * 8, max_tokens=4))
    bench.step()
    long, short = sequence([2] * 12), sequence([3] * 2)
    bench.add(long, short)
    bench.step()
    assert (long.state, short.state) == (State.WAITING, State.WAITING)


def test_the_second_of_two_equal_prompts_reuses_the_first_in_the_same_pass() -> None:
    bench = Bench()
    twins = [sequence(list(range(9))) for _ in range(2)]
    bench.add(*twins)
    assert list(bench.step().work.values()) == [9, 1]
    assert [twin.cached_tokens for twin in twins] == [0, 8]


def test_an_aligned_prompt_computes_its_last_block_again() -> None:
    """The last token must be computed to draw the next, so its block exists twice."""
    bench = Bench()
    for _ in range(2):
        bench.add(sequence(list(range(8))))
        bench.run()
    assert bench.passes[-1].prefill_tokens == BLOCK_SIZE
    assert sorted(bench.pool.contents().values()) == [1, 2]


def test_a_salt_separates_equal_prompts() -> None:
    bench = Bench()
    salted = [sequence(list(range(9)), salt=salt) for salt in ("a", "b", "a")]
    bench.add(*salted)
    bench.run()
    assert [each.cached_tokens for each in salted] == [0, 0, 8]


def test_blocks_that_the_answer_fills_are_reusable() -> None:
    bench = Bench()
    first = sequence([1, 2, 3], max_tokens=6)
    bench.add(first)
    bench.run()
    follow_up = sequence([*first.tokens, 5])
    bench.add(follow_up)
    bench.run()
    assert follow_up.cached_tokens == 8


def test_events_wait_for_the_end_of_their_pass() -> None:
    bench = Bench()
    bench.add(sequence([1] * 4))
    planned = bench.scheduler.plan()
    assert planned is not None
    _, events = bench.scheduler.complete(planned)
    assert [type(event) for event in events] == [BlockStored]


def test_stored_events_continue_the_chain_of_a_chunked_prompt() -> None:
    bench = Bench(max_batched_tokens=6)
    bench.add(sequence(list(range(12))))
    bench.run()
    first, second = [event for event in bench.events if isinstance(event, BlockStored)]
    assert (first.parent_block_hash, first.token_ids) == (None, tuple(range(4)))
    assert second.parent_block_hash == first.block_hashes[-1]
    assert second.token_ids == tuple(range(4, 12))


def test_abort_frees_blocks_at_once_even_within_a_pass() -> None:
    bench = Bench()
    gone, stays = sequence([1] * 9, max_tokens=5), sequence([2] * 9, max_tokens=5)
    bench.add(gone, stays)
    planned = bench.scheduler.plan()
    assert planned is not None
    bench.scheduler.abort(gone)
    bench.scheduler.abort(gone)
    assert bench.pool.active_blocks == 3
    drawn, _ = bench.scheduler.complete(planned)
    assert [token.sequence for token in drawn] == [stays]
    assert len(gone.tokens) == gone.prompt_tokens


def test_the_newest_sequence_is_preempted_and_finishes_later_with_the_same_text() -> None:
    bench = Bench(total_blocks=6)
    old, new = sequence([1] * 8, max_tokens=12), sequence([2] * 8, max_tokens=12)
    bench.add(old, new)
    bench.run()
    alone = Bench()
    unhindered = sequence([2] * 8, max_tokens=12)
    alone.add(unhindered)
    alone.run()
    assert any(old in planned.work and new not in planned.work for planned in bench.passes)
    assert new.tokens == unhindered.tokens
    assert new.cached_tokens == 0


def test_a_preempted_sequence_goes_before_those_that_wait() -> None:
    bench = Bench(total_blocks=6, max_sequences=2)
    old, new = sequence([1] * 8, max_tokens=12), sequence([2] * 8, max_tokens=12)
    later = sequence([3] * 8, max_tokens=1)
    bench.add(old, new, later)
    while later.state is State.WAITING:
        bench.step()
    assert new.state is not State.WAITING


PROMPTS = st.lists(st.integers(0, 2), min_size=1, max_size=20)
ARRIVALS = st.lists(st.tuples(PROMPTS, st.integers(1, 12), st.integers(0, 3)), max_size=12)


@settings(max_examples=60, deadline=None)
@given(arrivals=ARRIVALS, total_blocks=st.integers(8, 30), budget=st.integers(1, 25))
def test_every_sequence_ends_whole_whatever_arrives(
    arrivals: list[tuple[list[int], int, int]], total_blocks: int, budget: int
) -> None:
    """However crowded: right length, budget kept, no block left behind, text as if alone."""
    bench = Bench(total_blocks=total_blocks, max_batched_tokens=budget, max_sequences=4)
    sequences = []
    for prompt, max_tokens, passes_before in arrivals:
        for _ in range(passes_before * bool(bench.scheduler.unfinished)):
            if bench.scheduler.unfinished:
                bench.step()
        sequences.append(sequence(prompt, max_tokens))
        bench.add(sequences[-1])
    bench.run()
    assert all(sum(planned.work.values()) <= budget for planned in bench.passes)
    assert all(planned.work for planned in bench.passes)
    assert bench.pool.active_blocks == 0
    for (prompt, max_tokens, _), ended in zip(arrivals, sequences, strict=True):
        sampler = Sampler(array("I", prompt).tobytes(), 0)
        expected = prompt + [sampler.draw() for _ in range(max_tokens)]
        assert ended.tokens.tolist() == expected
        assert ended.state is State.FINISHED
    bench.pool.check_integrity()
