"""What happened to each block of late, and which of it the index had been told when. Pure.

Only changes on the GPU tier: they decide what an engine finds in its cache.
"""

from collections import OrderedDict, deque
from dataclasses import dataclass
from itertools import chain

from router.core.events import EventBatch, RemovedRun, StoredRun
from router.core.types import Tier

_MAX_BLOCKS = 131_072
_MAX_CHANGES_PER_BLOCK = 32


@dataclass(slots=True)
class Change:
    """A block came or went; `seq` is the batch or snapshot that told the index, None until then.

    `at_s` is the time of the engine's event.
    """

    is_held: bool
    at_s: float
    seq: int | None = None

    def is_told_by(self, seq: int) -> bool:
        return self.seq is not None and self.seq <= seq


class EventLog:
    """The last changes of the blocks that changed last; bounded in both."""

    def __init__(self, max_blocks: int = _MAX_BLOCKS) -> None:
        self.now_s = 0.0
        self._max_blocks = max_blocks
        self._changes: OrderedDict[int, deque[Change]] = OrderedDict()
        self._untold: dict[int, None] = {}

    def note(self, block_hash: int, tier: Tier, is_held: bool) -> None:
        """The block's first copy on the tier came, or its last one went, at `now_s`."""
        if tier is not Tier.GPU:
            return
        changes = self._changes.pop(block_hash, None) or deque(maxlen=_MAX_CHANGES_PER_BLOCK)
        changes.append(Change(is_held, self.now_s))
        self._changes[block_hash] = changes
        self._untold[block_hash] = None
        if len(self._changes) > self._max_blocks:
            oldest, _ = self._changes.popitem(last=False)
            self._untold.pop(oldest, None)

    def note_batch(self, batch: EventBatch) -> None:
        """The batch tells of the blocks that it names, and clearing of all that have gone."""
        groups: tuple[StoredRun | RemovedRun, ...] = (*batch.stored, *batch.removed)
        hashes = [group.hashes.tolist() for group in groups if group.tier is Tier.GPU]
        for block_hash in chain.from_iterable(hashes):
            self._tell(block_hash, batch.seq)
        if Tier.GPU in batch.cleared:
            for block_hash in list(self._untold):
                self._tell_removal(block_hash, batch.seq)

    def note_snapshot(self, seq: int) -> None:
        """A snapshot tells everything."""
        for block_hash in list(self._untold):
            self._tell(block_hash, seq)

    def was_held(self, block_hash: int, seq: int, is_held: bool) -> bool:
        """Whether the index had been told by then that the block is held.

        `is_held` is the block's state today, which stands where no change of it is on record.
        """
        changes = self._changes.get(block_hash)
        if not changes:
            return is_held
        told = [change.is_held for change in changes if change.is_told_by(seq)]
        return told[-1] if told else not changes[0].is_held

    def changes_after(self, block_hash: int, seq: int) -> list[Change]:
        """What the index had not yet been told by then."""
        changes = self._changes.get(block_hash, ())
        return [change for change in changes if not change.is_told_by(seq)]

    def _tell(self, block_hash: int, seq: int) -> None:
        self._untold.pop(block_hash, None)
        for change in self._changes.get(block_hash, ()):
            if change.seq is None:
                change.seq = seq

    def _tell_removal(self, block_hash: int, seq: int) -> None:
        """All up to the block's last removal; what was stored after it is still to be told."""
        changes = list(self._changes[block_hash])
        while changes and changes[-1].is_held:
            changes.pop()
        for change in changes:
            if change.seq is None:
                change.seq = seq
