"""The step scheduler: which sequences compute how many tokens in the next pass.

Follows vLLM's: running sequences first, from one token budget, then waiting ones in order of
arrival; prompts are chunked by the budget; a sequence that finds no block preempts the newest.
It has no clock: the caller takes `plan`, lets the pass's time go by, and calls `complete`.
"""

from collections import OrderedDict
from dataclasses import dataclass

from replicas.sim.events import KVEvent
from replicas.sim.pool import BlockId, BlockPool, StoredRun
from replicas.sim.sequence import Drawn, Pass, SimSequence, State


@dataclass(frozen=True, slots=True)
class SchedulerLimits:
    """`max_batched_tokens` bounds the tokens of one pass, `max_sequences` the running ones."""

    block_size: int
    max_batched_tokens: int
    max_sequences: int


class Scheduler:
    """Owns the sequences inside the engine and the pool's blocks that they hold."""

    def __init__(self, pool: BlockPool, limits: SchedulerLimits) -> None:
        self._pool = pool
        self._limits = limits
        self._waiting: OrderedDict[SimSequence, None] = OrderedDict()
        self._running: OrderedDict[SimSequence, None] = OrderedDict()

    @property
    def unfinished(self) -> int:
        return len(self._waiting) + len(self._running)

    @property
    def running(self) -> int:
        return len(self._running)

    def add(self, sequence: SimSequence) -> None:
        """Queues a sequence. The caller made sure that it fits into the pool alone."""
        longest = len(sequence.tokens) + sequence.max_tokens
        assert longest <= self._pool.total_blocks * self._limits.block_size
        self._waiting[sequence] = None

    def abort(self, sequence: SimSequence) -> None:
        """Ends a sequence and frees its blocks at once; nothing where it has ended."""
        if sequence.state is not State.FINISHED:
            self._leave(sequence, State.FINISHED)

    def plan(self) -> Pass | None:
        """Reserves the next pass; `None` when nothing is unfinished. O(sequences + new blocks)."""
        work: dict[SimSequence, int] = {}
        self._admit(work, self._advance(work))
        return Pass.of(work) if work else None

    def complete(self, done: Pass) -> tuple[list[Drawn], tuple[KVEvent, ...]]:
        """Draws the tokens that the pass allows; sequences that ended meanwhile are passed over."""
        drawn = []
        for sequence, tokens in done.work.items():
            if sequence.state is State.RUNNING:
                sequence.computed_tokens += tokens
                if sequence.missing_tokens == 0:
                    drawn.append(self._draw(sequence))
        return drawn, self._pool.drain_events()

    def _draw(self, sequence: SimSequence) -> Drawn:
        token_id = sequence.draw()
        is_last = sequence.output_tokens >= sequence.max_tokens
        if is_last:
            self._leave(sequence, State.FINISHED)
        return Drawn(sequence, token_id, is_last)

    def _advance(self, work: dict[SimSequence, int]) -> int:
        """Gives running sequences their tokens and returns what is left of the budget."""
        budget = self._limits.max_batched_tokens
        for sequence in list(self._running):
            if budget == 0:
                break
            tokens = min(sequence.missing_tokens, budget)
            if sequence.state is State.RUNNING and self._make_room(sequence, tokens):
                work[sequence] = tokens
                budget -= tokens
        return budget

    def _make_room(self, sequence: SimSequence, tokens: int) -> bool:
        """Grows a sequence, preempting the newest while blocks lack; false if it was the one."""
        while not self._grow(sequence, [], tokens):
            newest = next(reversed(self._running))
            self._leave(newest, State.WAITING)
            self._waiting[newest] = None
            self._waiting.move_to_end(newest, last=False)
            if newest is sequence:
                return False
        return True

    def _admit(self, work: dict[SimSequence, int], budget: int) -> None:
        """Admits from the head of the queue until budget, places or blocks run out."""
        while self._waiting and budget and len(self._running) < self._limits.max_sequences:
            sequence = next(iter(self._waiting))
            tokens = self._start(sequence, budget)
            if tokens is None:
                return
            work[sequence] = tokens
            budget -= tokens

    def _start(self, sequence: SimSequence, budget: int) -> int | None:
        """Moves a sequence to the running ones; `None` where blocks lack.

        At least one token is always computed: its logits give the next.
        """
        reusable_blocks = (len(sequence.tokens) - 1) // self._limits.block_size
        hits = self._pool.match(sequence.chain.hashes[:reusable_blocks])
        sequence.computed_tokens = len(hits) * self._limits.block_size
        sequence.stored_blocks = len(hits)
        tokens = min(sequence.missing_tokens, budget)
        if not self._grow(sequence, hits, tokens):
            sequence.computed_tokens = sequence.stored_blocks = 0
            return None
        if sequence.cached_tokens is None:
            sequence.cached_tokens = sequence.computed_tokens
        sequence.state = State.RUNNING
        del self._waiting[sequence]
        self._running[sequence] = None
        return tokens

    def _grow(self, sequence: SimSequence, hits: list[BlockId], tokens: int) -> bool:
        """Takes the blocks for `tokens` more and makes those that fill up reusable.

        They count as stored from here on, so that sequences of the same pass share them.
        """
        end = sequence.computed_tokens + tokens
        blocks = -(-end // self._limits.block_size)
        taken = self._pool.acquire(hits, blocks - len(sequence.blocks) - len(hits))
        if taken is None:
            return False
        sequence.blocks += taken
        self._store(sequence, end // self._limits.block_size)
        return True

    def _store(self, sequence: SimSequence, full_blocks: int) -> None:
        start, size = sequence.stored_blocks, self._limits.block_size
        if full_blocks <= start:
            return
        hashes = sequence.chain.hashes
        run = StoredRun(
            hashes=tuple(hashes[start:full_blocks]),
            parent=hashes[start - 1] if start else None,
            token_ids=tuple(sequence.tokens[start * size : full_blocks * size]),
            block_size=size,
            cache_salt=sequence.cache_salt,
        )
        self._pool.store(sequence.blocks[start:full_blocks], run)
        sequence.stored_blocks = full_blocks

    def _leave(self, sequence: SimSequence, state: State) -> None:
        """Takes a sequence off the queue or the running ones, and its blocks from it."""
        self._waiting.pop(sequence, None)
        self._running.pop(sequence, None)
        self._pool.release(sequence.blocks)
        sequence.blocks = []
        sequence.state = state
        sequence.computed_tokens = sequence.stored_blocks = 0
