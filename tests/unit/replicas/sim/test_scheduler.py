"""The step scheduler without a clock: passes are completed as soon as they are planned."""

from array import array
from collections import Counter
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replicas.sim.chain import HashChain
from replicas.sim.pool import BlockPool, Change, RemovedBlocks, StoredBlocks
from replicas.sim.scheduler import Scheduler, SchedulerLimits
from replicas.sim.sequence import Advance, Pass, SimSequence, State, TextSequence
from replicas.sim.text import Sampler
from router.core.errors import ConfigurationError
from router.core.types import BlockHash

BLOCK_SIZE = 4


def sequence(tokens: list[int], max_tokens: int = 1, salt: str | None = None) -> TextSequence:
    packed = array("I", tokens)
    return TextSequence(
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
    max_sequences: int = 4
    passes: list[Pass] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)
    drawn: list[list[SimSequence]] = field(default_factory=list)

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
        self.complete(planned)
        return planned

    def complete(self, planned: Pass) -> Advance:
        """Draws the tokens, as whoever has a clock does."""
        drawing = self.scheduler.drawing(planned)
        advance = self.scheduler.complete(planned)
        for each in drawing:
            if isinstance(each, TextSequence):
                each.draw()
        self.passes.append(planned)
        self.drawn.append(drawing)
        self.changes += self.pool.drain_changes()
        return advance

    def run(self) -> None:
        while self.scheduler.unfinished:
            self.step()
        assert self.scheduler.plan() is None


def tokens_of(planned: Pass) -> int:
    return planned.prefill_tokens + planned.decode_sequences


def test_a_prompt_is_cut_into_chunks_of_the_budget() -> None:
    bench = Bench(max_batched_tokens=4)
    bench.add(sequence(list(range(10)), max_tokens=2))
    bench.run()
    assert [planned.prefill_tokens for planned in bench.passes] == [4, 4, 2, 0]
    assert [planned.prefill_context_tokens for planned in bench.passes] == [0, 4, 8, 0]
    assert [planned.decode_sequences for planned in bench.passes] == [0, 0, 0, 1]
    assert bench.passes[-1].decode_context_tokens == 11


def test_a_first_token_needs_no_decoding() -> None:
    bench = Bench()
    only = sequence([1] * 5)
    bench.add(only)
    planned = bench.scheduler.plan()
    assert planned is not None
    assert (planned.decode_sequences, planned.decode_context_tokens) == (0, 0)
    assert bench.complete(planned) == Advance([only], [only])


def test_decoding_sequences_come_before_waiting_prompts() -> None:
    bench = Bench(max_batched_tokens=5)
    bench.add(sequence([1] * 5, max_tokens=3))
    bench.step()
    bench.add(sequence([2] * 10))
    planned = bench.step()
    assert (planned.decode_sequences, planned.prefill_tokens) == (1, 4)


def test_sequences_are_admitted_in_order_of_arrival() -> None:
    bench = Bench(max_sequences=2)
    waiting = [sequence([i] * 5, max_tokens=2) for i in range(3)]
    bench.add(*waiting)
    assert bench.step().admitted == waiting[:2]
    assert waiting[2].state is State.WAITING


def test_a_prompt_that_is_done_in_the_pass_keeps_its_place() -> None:
    bench = Bench(max_sequences=4, max_batched_tokens=8)
    sequences = [sequence([i] * 9, max_tokens=9) for i in range(6)]
    bench.add(*sequences)
    while bench.scheduler.unfinished:
        bench.step()
        assert bench.scheduler.running <= 4


def test_the_head_of_the_queue_is_never_overtaken() -> None:
    """A short prompt that would fit waits behind a long one that does not."""
    bench = Bench(total_blocks=5)
    bench.add(sequence([1] * 8, max_tokens=4))
    bench.step()
    long, short = sequence([2] * 16), sequence([3] * 2)
    bench.add(long, short)
    bench.step()
    assert (long.state, short.state) == (State.WAITING, State.WAITING)


def test_a_prompt_is_admitted_once_all_of_it_fits() -> None:
    """Its first chunk alone would have fitted at once."""
    bench = Bench(total_blocks=6, max_batched_tokens=8)
    bench.add(sequence([1] * 8, max_tokens=4), sequence([2] * 16))
    admitted = [len(bench.step().admitted) for _ in range(4)]
    assert admitted == [1, 0, 0, 0]
    assert len(bench.step().admitted) == 1


def test_the_second_of_two_equal_prompts_reuses_the_first_in_the_same_pass() -> None:
    bench = Bench()
    twins = [sequence(list(range(9))) for _ in range(2)]
    bench.add(*twins)
    assert bench.step().prefill_tokens == 9 + 1
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


def test_blocks_of_an_answer_without_tokens_get_names_of_their_own() -> None:
    bench = Bench()
    silent = SimSequence(5, 9, [BlockHash(7)])
    bench.add(silent)
    bench.run()
    assert silent.hashes == [7, 2**63, 2**63 + 1]
    assert bench.pool.contents() == dict.fromkeys(silent.hashes, 1)


def test_stored_blocks_continue_the_chain_of_a_chunked_prompt() -> None:
    bench = Bench(max_batched_tokens=6)
    bench.add(sequence(list(range(12))))
    bench.run()
    first, second = [change for change in bench.changes if isinstance(change, StoredBlocks)]
    assert (first.parent, first.start, first.end) == (None, 0, 1)
    assert second.parent == first.hashes[-1]
    assert (second.start, second.end) == (1, 3)


def test_abort_frees_blocks_at_once_even_within_a_pass() -> None:
    bench = Bench()
    gone, stays = sequence([1] * 9, max_tokens=5), sequence([2] * 9, max_tokens=5)
    bench.add(gone, stays)
    planned = bench.scheduler.plan()
    assert planned is not None
    bench.scheduler.abort(gone)
    bench.scheduler.abort(gone)
    assert bench.pool.active_blocks == 3
    assert bench.scheduler.drawing(planned) == [stays]
    assert bench.complete(planned).first_tokens == [stays]
    assert len(gone.tokens) == gone.prompt_tokens


@pytest.mark.parametrize("passes_before", [0, 1, 3], ids=["waiting", "chunked", "decoding"])
def test_abort_leaves_nothing_behind(passes_before: int) -> None:
    bench = Bench(max_batched_tokens=5)
    gone = sequence([1] * 9, max_tokens=5)
    bench.add(gone)
    for _ in range(passes_before):
        bench.step()
    bench.scheduler.abort(gone)
    assert (bench.scheduler.unfinished, bench.pool.active_blocks) == (0, 0)
    bench.add(sequence([2] * 3, max_tokens=4))
    bench.run()
    assert bench.passes[-1].decode_context_tokens == 6


def test_the_newest_sequence_is_preempted_and_finishes_later_with_the_same_text() -> None:
    """It finds its own first block again; the older one took its second."""
    bench = Bench(total_blocks=6)
    old, new = sequence([1] * 8, max_tokens=12), sequence([2] * 8, max_tokens=12)
    bench.add(old, new)
    bench.run()
    alone = Bench()
    unhindered = sequence([2] * 8, max_tokens=12)
    alone.add(unhindered)
    alone.run()
    assert bench.scheduler.preemptions > 0
    assert any(old in drawn and new not in drawn for drawn in bench.drawn)
    assert new.tokens == unhindered.tokens
    assert new.cached_tokens == 0
    assert new.most_cached_tokens == 4


def test_a_preempted_sequence_goes_before_those_that_wait() -> None:
    bench = Bench(total_blocks=6, max_sequences=2)
    old, new = sequence([1] * 8, max_tokens=12), sequence([2] * 8, max_tokens=12)
    later = sequence([3] * 8, max_tokens=1)
    bench.add(old, new, later)
    while later.state is State.WAITING:
        bench.step()
    assert new.state is not State.WAITING


def test_nobody_is_admitted_in_a_pass_that_preempts() -> None:
    bench = Bench(total_blocks=6)
    bench.add(*[sequence([i] * 8, max_tokens=12) for i in range(2)])
    while not bench.scheduler.preemptions:
        bench.step()
    assert bench.passes[-1].admitted == []


def test_a_sequence_that_resumes_computes_its_prompt_as_prefill_and_decodes() -> None:
    """Two of its prompt's tokens are gone from the cache, and so is all its output."""
    bench = Bench(total_blocks=6)
    old, new = sequence([1] * 8, max_tokens=12), sequence([2] * 6, max_tokens=12)
    bench.add(old, new)
    bench.run()
    again = [planned for planned in bench.passes if planned.admitted == [new]][-1]
    assert (again.prefill_context_tokens, again.prefill_tokens) == (4, 2)
    assert again.decode_context_tokens > new.prompt_tokens


def test_a_budget_below_the_places_is_refused() -> None:
    with pytest.raises(ConfigurationError) as refusal:
        SchedulerLimits(BLOCK_SIZE, max_batched_tokens=3, max_sequences=4)
    assert refusal.value.key == "max_num_batched_tokens"


PROMPTS = st.lists(st.integers(0, 2), min_size=1, max_size=20)
ARRIVALS = st.lists(st.tuples(PROMPTS, st.integers(1, 12), st.integers(0, 3)), max_size=12)


@settings(max_examples=80, deadline=None)
@given(arrivals=ARRIVALS, total_blocks=st.integers(8, 30), budget=st.integers(4, 25))
def test_every_sequence_ends_whole_whatever_arrives(
    arrivals: list[tuple[list[int], int, int]], total_blocks: int, budget: int
) -> None:
    """However crowded: right length, budget kept, no block left behind, text as if alone."""
    bench = Bench(total_blocks=total_blocks, max_batched_tokens=budget)
    sequences = []
    for prompt, max_tokens, passes_before in arrivals:
        for _ in range(passes_before):
            if bench.scheduler.unfinished:
                bench.step()
        sequences.append(sequence(prompt, max_tokens))
        bench.add(sequences[-1])
    bench.run()
    assert all(tokens_of(planned) <= budget for planned in bench.passes)
    assert all(planned.prefilled or tokens_of(planned) for planned in bench.passes)
    assert bench.pool.active_blocks == 0
    for (prompt, max_tokens, _), ended in zip(arrivals, sequences, strict=True):
        sampler = Sampler(array("I", prompt).tobytes(), 0)
        expected = prompt + [sampler.draw() for _ in range(max_tokens)]
        assert ended.tokens.tolist() == expected
        assert ended.state is State.FINISHED
    bench.pool.check_integrity()
    assert announced(bench.changes) == bench.pool.contents()


def announced(changes: list[Change]) -> Counter[BlockHash]:
    """What somebody who follows the changes believes to be cached."""
    copies: Counter[BlockHash] = Counter()
    for change in changes:
        if isinstance(change, StoredBlocks):
            copies.update(change.hashes)
        elif isinstance(change, RemovedBlocks):
            copies.subtract(change.hashes)
    return +copies
