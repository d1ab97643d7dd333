"""The sequences that decode: all move on together, one token a pass.

What happens to one of them at a certain token (a block begins, a block is full, the answer ends)
is entered in a calendar of passes, so that a pass costs what happens in it and not what runs.
"""

from collections import OrderedDict, defaultdict
from collections.abc import Iterator
from operator import attrgetter

from replicas.sim.sequence import SimSequence, State

_BY_ORDER = attrgetter("order")
_Entries = list[tuple[SimSequence, int]]


class Decoding:
    """Sequences in running order. A calendar entry counts if the sequence still decodes since the
    pass that the entry names; stale ones leave when their pass comes.
    """

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._members: OrderedDict[SimSequence, None] = OrderedDict()
        self._passes = 0
        self._growing: defaultdict[int, _Entries] = defaultdict(list)
        self._filling: defaultdict[int, _Entries] = defaultdict(list)
        self._ending: defaultdict[int, _Entries] = defaultdict(list)
        self.context_tokens = 0
        """Sum of the members' lengths."""

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[SimSequence]:
        return iter(self._members)

    @property
    def newest(self) -> SimSequence:
        return next(reversed(self._members))

    def add(self, sequence: SimSequence) -> None:
        """Takes in a sequence of `length` known tokens, of which the last is to be computed."""
        sequence.state = State.DECODING
        sequence.since = now = self._passes
        self._members[sequence] = None
        self.context_tokens += sequence.length
        self._enter(self._growing, sequence, now + (1 - sequence.length) % self._block_size)
        self._enter(self._filling, sequence, now + -sequence.length % self._block_size)
        self._enter(self._ending, sequence, now + sequence.last_length - sequence.length - 1)

    def remove(self, sequence: SimSequence) -> None:
        """Takes a sequence out and settles its length."""
        del self._members[sequence]
        sequence.length = self.length_of(sequence)
        self.context_tokens -= sequence.length

    def length_of(self, sequence: SimSequence) -> int:
        """Tokens known of a member."""
        return sequence.length + self._passes - sequence.since

    def growing(self) -> list[SimSequence]:
        """Members that begin a block in the pass at hand; each again one block later."""
        return self._due(self._growing, self._block_size)

    def filling(self) -> list[SimSequence]:
        """Members that fill a block in the pass at hand; each again one block later."""
        return self._due(self._filling, self._block_size)

    def advance(self) -> list[SimSequence]:
        """Ends the pass: one token more for each. Takes out those whose last it was."""
        ending = self._due(self._ending, 0)
        self._passes += 1
        self.context_tokens += len(self._members)
        for sequence in ending:
            self.remove(sequence)
        return ending

    def quiet_passes(self) -> int:
        """Passes to come in which no member begins a block, fills one or ends; someone decodes."""
        at = self._passes
        while not (at in self._growing or at in self._filling or at in self._ending):
            at += 1
        return at - self._passes

    def skip(self, passes: int) -> None:
        """Ends so many quiet passes at once."""
        self._passes += passes
        self.context_tokens += passes * len(self._members)

    def _enter(
        self, calendar: defaultdict[int, _Entries], sequence: SimSequence, at_pass: int
    ) -> None:
        calendar[at_pass].append((sequence, sequence.since))

    def _due(self, calendar: defaultdict[int, _Entries], again_after: int) -> list[SimSequence]:
        entries = calendar.pop(self._passes, None)
        if entries is None:
            return []
        live = [e for e in entries if e[0].since == e[1] and e[0] in self._members]
        if again_after and live:
            calendar[self._passes + again_after] += live
        return sorted([entry[0] for entry in live], key=_BY_ORDER)
