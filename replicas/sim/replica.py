"""One simulated replica on a virtual clock: what a replay runs many of. Pure.

    replica = SimReplica.create(2048)
    replica.submit(SimSequence(prompt_tokens=130, max_tokens=8, hashes=[11, 12]))
    while (done := replica.next_pass(now_s)) is not None:
        now_s = done.end_s

Requests that arrive at the same moment as a pass ends are submitted before the next is asked for.

`hashes` name the full blocks of the prompt, `prompt_tokens // block_size` of them, and are chained:
two sequences share a block exactly where they name it alike, and then all blocks before it too.
Unsigned 64-bit integers below 2**63, so that a block index takes them; blocks that answers fill
are named from 2**63 on.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from replicas.sim.latency import DynamoLatency, LatencyModel
from replicas.sim.pool import BlockPool, Change
from replicas.sim.scheduler import Scheduler, SchedulerLimits
from replicas.sim.sequence import Pass, SimSequence


@dataclass(frozen=True, slots=True)
class PassResult:
    """What one pass did, all of it visible at `end_s` only.

    `admitted` began to be computed, once more where they were preempted. `first_tokens` and
    `finished` got their first and their last token. `changes` are of the cache, in order: a hash's
    first copy and its last.
    """

    end_s: float
    admitted: Sequence[SimSequence]
    first_tokens: Sequence[SimSequence]
    finished: Sequence[SimSequence]
    changes: Sequence[Change]


class SimReplica:
    """Runs one pass after the other; requests join at the next. Not started by itself: the caller
    asks for a pass whenever the last one is over and something is unfinished.
    """

    def __init__(self, pool: BlockPool, scheduler: Scheduler, latency: LatencyModel) -> None:
        self._pool = pool
        self._scheduler = scheduler
        self._latency = latency
        self._block_size = scheduler.limits.block_size

    @classmethod
    def create(
        cls,
        total_blocks: int,
        limits: SchedulerLimits | None = None,
        latency: LatencyModel | None = None,
        fresh_hashes: Iterator[int] | None = None,
    ) -> "SimReplica":
        """As NVIDIA Dynamo's mocker unless told otherwise. Replicas that are to name the blocks of
        answers apart share one `fresh_hashes`.
        """
        limits = limits or SchedulerLimits()
        pool = BlockPool(total_blocks, is_each_copy_reported=False)
        scheduler = Scheduler(pool, limits, fresh_hashes)
        model = latency or DynamoLatency(total_blocks * limits.block_size)
        return cls(pool, scheduler, model)

    def submit(self, sequence: SimSequence) -> bool:
        """Queues a request; false, and nothing changed, where it could never fit."""
        if sequence.last_length > self._pool.total_blocks * self._block_size:
            return False
        self._scheduler.add(sequence)
        return True

    def next_pass(self, now_s: float) -> PassResult | None:
        """The pass that starts at `now_s`; None where there is nothing to do."""
        planned = self._scheduler.plan()
        if planned is None:
            return None
        end_s = now_s + self._latency.pass_s(planned)
        advance = self._scheduler.complete(planned)
        return PassResult(
            end_s,
            planned.admitted,
            advance.first_tokens,
            advance.finished,
            self._pool.drain_changes(),
        )

    def quiet_ends(self, now_s: float) -> list[float]:
        """When the passes from now on end of which nobody hears: they only give each running
        request a further token. As long as nothing is submitted, reset or dropped.
        """
        passes = 0 if self._pool.has_changes else self._scheduler.quiet_passes()
        if not passes:
            return []
        work = Pass()
        self._scheduler.count_decoding(work)
        ends: list[float] = []
        for _ in range(passes):
            now_s += self._latency.pass_s(work)
            ends.append(now_s)
            work.decode_context_tokens += work.decode_sequences
        return ends

    def skip(self, passes: int) -> None:
        """So many of the quiet passes are over."""
        self._scheduler.skip(passes)

    def reset_prefix_cache(self) -> bool:
        """Drops all reusable content; false while requests hold blocks. Seen in the next pass."""
        return self._pool.reset()

    def drop_idle_blocks(self) -> None:
        """Drops the content that no running request holds. Seen in the next pass."""
        self._pool.drop_idle()

    @property
    def unfinished(self) -> int:
        """Requests waiting or running."""
        return self._scheduler.unfinished

    @property
    def active_blocks(self) -> int:
        """Blocks that running requests hold."""
        return self._pool.active_blocks

    @property
    def preemptions(self) -> int:
        return self._scheduler.preemptions
