"""A simulated replica on a virtual clock."""

from collections.abc import Sequence
from itertools import count

import pytest

from replicas.sim.latency import LinearLatency
from replicas.sim.pool import RemovedBlocks, StoredBlocks
from replicas.sim.replica import PassResult, SimReplica
from replicas.sim.scheduler import SchedulerLimits
from replicas.sim.sequence import SimSequence
from router.core.types import BlockHash

LIMITS = SchedulerLimits(block_size=4, max_batched_tokens=16, max_sequences=4)
LATENCY = LinearLatency(prefill_ms_per_token=1, prefill_base_ms=10, decode_ms_per_token=5)


def replica(total_blocks: int = 8) -> SimReplica:
    return SimReplica.create(total_blocks, LIMITS, LATENCY)


def request(prompt_tokens: int, max_tokens: int, *hashes: int) -> SimSequence:
    return SimSequence(prompt_tokens, max_tokens, [BlockHash(digest) for digest in hashes])


def run(replica: SimReplica, now_s: float = 0.0) -> list[PassResult]:
    results = []
    while (result := replica.next_pass(now_s)) is not None:
        results.append(result)
        now_s = result.end_s
    return results


def test_each_pass_says_what_happened_in_it_and_when_it_ends() -> None:
    bench, only = replica(), request(9, 3, 1, 2)
    assert bench.submit(only)
    prefill, decode, last = run(bench, now_s=1.0)
    assert (prefill.admitted, prefill.first_tokens, prefill.finished) == ([only], [only], [])
    assert (decode.admitted, decode.first_tokens, decode.finished) == ([], [], [])
    assert last.finished == [only]
    assert [r.end_s for r in (prefill, decode, last)] == pytest.approx([1.019, 1.024, 1.029])


def lives_of(prompts: Sequence[int], is_skipping: bool) -> list[tuple[float, int, list[int]]]:
    """When passes with news end, how many blocks are then held, and who finishes in them."""
    bench = replica(total_blocks=64)
    asked = [
        request(tokens, 30 - tokens, *range(10 * tokens, 10 * tokens + tokens // 4))
        for tokens in prompts
    ]
    for each in asked:
        bench.submit(each)
    news, now_s = [], 0.0
    while bench.unfinished:
        ends = bench.quiet_ends(now_s) if is_skipping else []
        if ends:
            bench.skip(len(ends))
            now_s = ends[-1]
        elif (done := bench.next_pass(now_s)) is not None:
            now_s = done.end_s
            if done.first_tokens or done.finished or done.changes:
                finished = [asked.index(each) for each in done.finished]
                news.append((now_s, bench.active_blocks, finished))
    return news


@pytest.mark.parametrize("prompts", [(6,), (5, 7, 10)])
def test_quiet_passes_skipped_at_once_leave_all_others_as_they_are(prompts: list[int]) -> None:
    assert lives_of(prompts, is_skipping=True) == lives_of(prompts, is_skipping=False)


def test_only_passes_in_which_nothing_happens_are_quiet() -> None:
    """Seven tokens are known after the prefill; the next but one begins the third block."""
    bench = replica()
    bench.submit(request(6, 20, 1))
    assert bench.quiet_ends(0.0) == []
    first = bench.next_pass(0.0)
    assert first is not None
    assert bench.quiet_ends(1.0) == pytest.approx([1.005])
    bench.submit(request(4, 1, 2))
    assert bench.quiet_ends(1.0) == []


def test_an_idle_replica_has_nothing_to_run() -> None:
    assert replica().next_pass(0.0) is None


def test_a_request_that_can_never_fit_is_refused() -> None:
    bench = replica(total_blocks=2)
    assert not bench.submit(request(6, 3, 1))
    assert bench.unfinished == 0


def test_a_prefix_computed_earlier_is_not_computed_again() -> None:
    bench = replica()
    bench.submit(request(9, 1, 1, 2))
    run(bench)
    again = request(13, 1, 1, 2, 3)
    bench.submit(again)
    (result,) = run(bench)
    assert again.cached_tokens == 8
    assert result.end_s == pytest.approx(0.015)


def test_changes_name_blocks_once_however_many_copies_there_are() -> None:
    """The second prompt computes its last block again, beside the first's."""
    bench = replica(total_blocks=4)
    for _ in range(2):
        bench.submit(request(8, 1, 1, 2))
        run(bench)
    bench.submit(request(15, 1, 7, 8, 9))
    (result,) = run(bench)
    removed, stored = result.changes
    assert isinstance(removed, RemovedBlocks)
    assert set(removed.hashes) == {1, 2}
    assert isinstance(stored, StoredBlocks)
    assert stored.hashes == [7, 8, 9]


def test_replicas_can_name_the_blocks_of_answers_apart() -> None:
    fresh = count(100)
    answers = []
    for _ in range(2):
        bench = SimReplica.create(8, LIMITS, LATENCY, fresh_hashes=fresh)
        answers.append(request(3, 6))
        bench.submit(answers[-1])
        run(bench)
    assert [answer.hashes for answer in answers] == [[100, 101], [102, 103]]


def test_a_reset_drops_the_cache_unless_it_is_in_use() -> None:
    bench = replica()
    bench.submit(request(9, 2, 1, 2))
    bench.next_pass(0.0)
    assert not bench.reset_prefix_cache()
    run(bench)
    assert bench.reset_prefix_cache()
    again = request(9, 1, 1, 2)
    bench.submit(again)
    run(bench)
    assert again.cached_tokens == 0
