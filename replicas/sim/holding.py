"""The blocks that sequences hold: taken from the pool, filled, given back."""

from collections.abc import Iterator, Sequence
from itertools import count

from replicas.sim.pool import Block, BlockPool
from replicas.sim.sequence import SimSequence
from router.core.types import BlockHash

FIRST_FRESH_HASH = 2**63


class Holding:
    """Keeps a sequence's `blocks` and `stored_blocks` in step with the pool.

    `fresh_hashes` name the blocks that outputs fill, where the sequence does not know their hashes
    itself.
    """

    def __init__(
        self, pool: BlockPool, block_size: int, fresh_hashes: Iterator[int] | None = None
    ) -> None:
        self._pool = pool
        self._block_size = block_size
        self._fresh_hashes = fresh_hashes or count(FIRST_FRESH_HASH)

    def fits_alone(self, tokens: int) -> bool:
        return self._blocks_of(tokens) <= self._pool.total_blocks

    def match(self, sequence: SimSequence) -> list[Block]:
        """The cached prefix, short of the last token: its logits give the next one. O(hits)."""
        return self._pool.match(sequence.hashes, (sequence.length - 1) // self._block_size)

    def has_room(self, sequence: SimSequence, hits: Sequence[Block]) -> bool:
        """Whether all of a waiting sequence fits, `hits` being there already."""
        return self._pool.has_room(hits, self._blocks_of(sequence.length) - len(hits))

    def take_over(self, sequence: SimSequence, hits: Sequence[Block]) -> int:
        """Gives a sequence its cached prefix; returns the tokens in it."""
        blocks = self._pool.acquire(hits, 0)
        assert blocks is not None
        sequence.blocks, sequence.stored_blocks = blocks, len(hits)
        return len(hits) * self._block_size

    def grow(self, sequence: SimSequence, tokens: int) -> bool:
        """Takes what `tokens` in all need; false, and nothing changed, where too few are free."""
        missing = self._blocks_of(tokens) - len(sequence.blocks)
        blocks = self._pool.acquire((), missing)
        if blocks is None:
            return False
        sequence.blocks += blocks
        return True

    def store(self, sequence: SimSequence, tokens: int) -> None:
        """Makes the blocks that the first `tokens` fill reusable. O(blocks)."""
        start, end = sequence.stored_blocks, tokens // self._block_size
        if end <= start:
            return
        while len(sequence.hashes) < end:
            sequence.hashes.append(BlockHash(next(self._fresh_hashes)))
        self._pool.store(sequence.blocks[start:end], sequence, start)
        sequence.stored_blocks = end

    def release(self, sequence: SimSequence) -> None:
        self._pool.release(sequence.blocks)
        sequence.blocks = []
        sequence.stored_blocks = 0

    def _blocks_of(self, tokens: int) -> int:
        return -(-tokens // self._block_size)
