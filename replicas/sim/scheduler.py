"""The step scheduler: which sequences compute how many tokens in the next pass.

Follows vLLM's: running sequences first, then waiting ones in order of arrival, from one token
budget; prompts are chunked by it; a sequence that finds no block preempts the newest, which
starts anew, and nobody is admitted in that pass. A waiting one is admitted once its whole prompt
fits. It has no clock: the caller takes `plan`, lets the pass's time go by, and calls `complete`.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from replicas.sim.decoding import Decoding
from replicas.sim.holding import Holding
from replicas.sim.pool import Block, BlockPool
from replicas.sim.sequence import Advance, Pass, SimSequence, State
from router.core.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class SchedulerLimits:
    """`max_batched_tokens` bounds the tokens of one pass, `max_sequences` the running ones.

    Raises `ConfigurationError` where the sequences could not all decode in one pass.
    """

    block_size: int = 64
    max_batched_tokens: int = 8192
    max_sequences: int = 256

    def __post_init__(self) -> None:
        if self.max_batched_tokens < self.max_sequences:
            raise ConfigurationError("max_num_batched_tokens", "is below max_num_seqs")


class Scheduler:
    """Owns the sequences inside the engine.

    At most one running sequence is within its prompt, and it is the newest.
    """

    def __init__(
        self, pool: BlockPool, limits: SchedulerLimits, fresh_hashes: Iterator[int] | None = None
    ) -> None:
        self.limits = limits
        self.preemptions = 0
        self._blocks = Holding(pool, limits.block_size, fresh_hashes)
        self._waiting: deque[SimSequence] = deque()
        self._decoding = Decoding(limits.block_size)
        self._prefilling: SimSequence | None = None
        self._admissions = 0

    @property
    def unfinished(self) -> int:
        return self.waiting + self.running

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def running(self) -> int:
        return len(self._decoding) + (self._prefilling is not None)

    def add(self, sequence: SimSequence) -> None:
        """Queues a sequence. The caller made sure that it fits into the pool alone."""
        assert self._blocks.fits_alone(sequence.last_length)
        self._waiting.append(sequence)

    def abort(self, sequence: SimSequence) -> None:
        """Ends a sequence and frees its blocks at once; nothing where it has ended."""
        if sequence.state is State.WAITING:
            self._waiting.remove(sequence)
        elif sequence.state is not State.FINISHED:
            self._stop(sequence)
        sequence.state = State.FINISHED

    def plan(self) -> Pass | None:
        """Reserves the next pass; None when nothing is unfinished. O(what happens in it)."""
        if not self._waiting and not self.running:
            return None
        planned = Pass()
        preemptions_before = self.preemptions
        self._plan_decoding()
        budget = self.limits.max_batched_tokens - len(self._decoding)
        if self._prefilling is not None and budget:
            budget -= self._go_on(self._prefilling, planned, budget)
        if self._waiting and self.preemptions == preemptions_before:
            self._admit(planned, budget)
        self.count_decoding(planned)
        return planned

    def count_decoding(self, planned: Pass) -> None:
        """Enters those that decode into a pass."""
        planned.count_decode(len(self._decoding), self._decoding.context_tokens)

    def quiet_passes(self) -> int:
        """Passes to come that give each running sequence a token and change nothing else, as long
        as nobody is added."""
        if self._waiting or self._prefilling is not None or not len(self._decoding):
            return 0
        return self._decoding.quiet_passes()

    def skip(self, passes: int) -> None:
        """Plans and completes so many quiet passes. O(1)."""
        self._decoding.skip(passes)

    def drawing(self, planned: Pass) -> list[SimSequence]:
        """Who gets a token of the pass that was planned. O(running)."""
        alive = [each for each in planned.prefilled if each.state is State.PREFILLING]
        return [*self._decoding, *alive]

    def complete(self, planned: Pass) -> Advance:
        """Gives a token to each that the pass allows; those that ended meanwhile get none."""
        finished, first_tokens = self._decoding.advance(), []
        for sequence in planned.prefilled:
            if sequence.state is not State.PREFILLING:
                continue
            if sequence.length == sequence.prompt_tokens:
                first_tokens.append(sequence)
            sequence.length += 1
            if sequence.length == sequence.last_length:
                finished.append(sequence)
            else:
                self._decoding.add(sequence)
        for sequence in finished:
            sequence.state = State.FINISHED
            self._blocks.release(sequence)
        return Advance(first_tokens, finished)

    def _plan_decoding(self) -> None:
        """Blocks for the next token of each that decodes; preempts the newest while they lack."""
        for sequence in self._decoding.growing():
            while sequence.state is State.DECODING:
                if self._blocks.grow(sequence, self._decoding.length_of(sequence)):
                    break
                self._preempt(self._prefilling or self._decoding.newest)
        for sequence in self._decoding.filling():
            self._blocks.store(sequence, self._decoding.length_of(sequence))

    def _go_on(self, sequence: SimSequence, planned: Pass, budget: int) -> int:
        """Computes the next chunk of a prompt and returns its tokens; where blocks lack, the
        sequence is preempted.
        """
        tokens = min(sequence.length - sequence.computed_tokens, budget)
        if not self._blocks.grow(sequence, sequence.computed_tokens + tokens):
            self._preempt(sequence)
            return 0
        self._compute(sequence, tokens, planned)
        return tokens

    def _admit(self, planned: Pass, budget: int) -> None:
        """Admits from the head of the queue until budget, places or blocks run out."""
        places = self.limits.max_sequences - self.running - len(planned.prefilled)
        while self._waiting and budget and places:
            sequence = self._waiting[0]
            hits = self._blocks.match(sequence)
            if not self._blocks.has_room(sequence, hits):
                return
            self._start(sequence, hits)
            planned.admitted.append(self._waiting.popleft())
            budget -= self._go_on(sequence, planned, budget)
            places -= 1

    def _start(self, sequence: SimSequence, hits: list[Block]) -> None:
        cached_tokens = self._blocks.take_over(sequence, hits)
        sequence.most_cached_tokens = max(sequence.most_cached_tokens, cached_tokens)
        if sequence.cached_tokens is None:
            sequence.cached_tokens = cached_tokens
        sequence.computed_tokens = cached_tokens
        sequence.order = self._admissions = self._admissions + 1
        sequence.state = State.PREFILLING

    def _compute(self, sequence: SimSequence, tokens: int, planned: Pass) -> None:
        """Enters a chunk into the pass. What is prompt in it counts as prefill; a sequence that
        resumes with output counts as decoding, too, in the pass that gives it the next token.

        Its full blocks are reusable from here on, so that others in the same pass share them.
        """
        start, end = sequence.computed_tokens, sequence.computed_tokens + tokens
        sequence.computed_tokens = end
        self._blocks.store(sequence, end)
        is_whole = end == sequence.length
        if start < sequence.prompt_tokens:
            planned.count_prefill(start, min(end, sequence.prompt_tokens) - start)
        if is_whole:
            planned.prefilled.append(sequence)
            if end > sequence.prompt_tokens:
                planned.count_decode(1, end)
        self._prefilling = None if is_whole else sequence

    def _preempt(self, sequence: SimSequence) -> None:
        self.preemptions += 1
        self._stop(sequence)
        sequence.state = State.WAITING
        self._waiting.appendleft(sequence)

    def _stop(self, sequence: SimSequence) -> None:
        """Takes a sequence out of the running ones, and its blocks from it."""
        if sequence.state is State.DECODING:
            self._decoding.remove(sequence)
        if sequence is self._prefilling:
            self._prefilling = None
        self._blocks.release(sequence)
