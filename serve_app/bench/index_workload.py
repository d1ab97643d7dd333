"""The traffic on which block indexes are compared: chains, who stores them, and as which bytes.

Every prompt is one of a few system prompts and a part of its own. A replica stores what it has not
got; when it is full, its oldest prompt leaves from the end. Each side gets the same steps in its
own wire form.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from router.core.events import NO_PARENT, EventBatch, RemovedRun, StoredRun
from router.core.types import Incarnation, ReplicaId, Tier

SYSTEM_PROMPTS = 12

Hashes = NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class Blocks:
    """Consecutive blocks: chained hashes, and the hashes of each block's content alone."""

    chained: Hashes
    content: Hashes

    def __add__(self, other: "Blocks") -> "Blocks":
        chained = np.concatenate((self.chained, other.chained))
        return Blocks(chained, np.concatenate((self.content, other.content)))

    def __getitem__(self, part: slice) -> "Blocks":
        return Blocks(self.chained[part], self.content[part])

    def __len__(self) -> int:
        return len(self.chained)


@dataclass(frozen=True, slots=True)
class Step:
    """One event of one replica: blocks stored after `parent`, or removed."""

    replica: int
    seq: int
    stored: Blocks | None = None
    parent: int = NO_PARENT
    removed: Blocks | None = None
    tier: Tier = Tier.GPU

    @property
    def blocks(self) -> int:
        return len(self.stored or ()) + len(self.removed or ())

    def ours(self) -> bytes:
        """As a replica sends it to the block index."""
        stored = self.stored and (StoredRun(self.tier, self.parent, self.stored.chained),)
        removed = self.removed and (RemovedRun(Tier.GPU, self.removed.chained),)
        name, life = ReplicaId(f"replica-{self.replica}"), Incarnation(1)
        return EventBatch(name, life, self.seq, stored or (), removed or ()).pack()

    def dynamo(self) -> bytes:
        """As `RadixTree.apply_event` takes it."""
        data: dict[str, object] = {}
        if self.stored is not None:
            pairs = zip(self.stored.chained.tolist(), self.stored.content.tolist(), strict=True)
            blocks = [{"block_hash": chained, "tokens_hash": own} for chained, own in pairs]
            data = {"stored": {"parent_hash": self.parent or None, "blocks": blocks}}
        if self.removed is not None:
            data = {"removed": {"block_hashes": self.removed.chained.tolist()}}
        return json.dumps({"event_id": self.seq, "data": data}).encode()


class Traffic:
    """An endless, seeded sequence of prompts of `prompt_blocks` blocks on `replicas` replicas."""

    def __init__(self, replicas: int, prompt_blocks: int, seed: int = 1) -> None:
        self.replicas = replicas
        self.prompt_blocks = prompt_blocks
        self.rng = np.random.default_rng(seed)
        self.prompts: list[Blocks] = []
        self._systems = [self.fresh(prompt_blocks // 8) for _ in range(SYSTEM_PROMPTS)]
        self._next_prompt = 0
        self._running: list[Blocks] = []
        self._seqs = [0] * replicas
        self._stored: list[tuple[int, Blocks]] = []
        self._has_system: set[tuple[int, int]] = set()

    def fresh(self, blocks: int) -> Blocks:
        """Blocks that nobody has seen."""
        chained, content = self.rng.integers(1, 1 << 63, (2, blocks), np.uint64)
        return Blocks(chained, content)

    def store(self, holders: int) -> Iterator[Step]:
        """A new prompt, computed by so many replicas."""
        number, self._next_prompt = self._next_prompt, self._next_prompt + 1
        system = number % SYSTEM_PROMPTS
        own = self.fresh(self.prompt_blocks - len(self._systems[system]))
        self.prompts.append(self._systems[system] + own)
        for holder in range(min(holders, self.replicas)):
            replica = (number * 7 + holder * 3) % self.replicas
            self._stored.append((replica, own))
            yield self._stored_by(replica, system, own)

    def copy_to_cpu(self) -> Step:
        """A prompt's own blocks, the one stored last, are copied to its replica's CPU tier."""
        replica, own = self._stored[-1]
        return Step(replica, self._next_seq(replica), stored=own, tier=Tier.CPU)

    def start_decoding(self, sequences: int) -> Iterator[Step]:
        """So many sequences begin to run on one replica, with prompts that are not asked for."""
        self._running = [self.fresh(32) for _ in range(sequences)]
        for prompt in self._running:
            yield Step(0, self._next_seq(0), stored=prompt)

    def decode(self) -> list[Step]:
        """Every running sequence fills one more block."""
        seq = self._next_seq(0)
        new = [self.fresh(1) for _ in self._running]
        steps = [
            Step(0, seq, stored=block, parent=int(chain.chained[-1]))
            for chain, block in zip(self._running, new, strict=True)
        ]
        self._running = new
        return steps

    def evict(self) -> Step:
        """The oldest prompt's own blocks leave the replica that stored it first."""
        replica, own = self._stored.pop(0)
        return Step(replica, self._next_seq(replica), removed=own)

    def forget_old(self) -> None:
        """Keeps only what the next calls need, so that memory is the index's alone."""
        del self.prompts[:-1], self._stored[:-1]

    def question(self) -> Blocks:
        """What conversations ask: a known prompt again, continued, or with another ending.

        Of the prompt's blocks the last eighth is new where it goes on or ends differently.
        """
        known = self.prompts[int(self.rng.integers(len(self.prompts) // 2, len(self.prompts)))]
        new = self.fresh(self.prompt_blocks // 8)
        match self.rng.integers(3):
            case 0:
                return known
            case 1:
                return known + new
            case _:
                return known[: -len(new)] + new

    def _stored_by(self, replica: int, system: int, own: Blocks) -> Step:
        blocks, parent = own, int(self._systems[system].chained[-1])
        if (replica, system) not in self._has_system:
            self._has_system.add((replica, system))
            blocks, parent = self._systems[system] + own, NO_PARENT
        return Step(replica, self._next_seq(replica), stored=blocks, parent=parent)

    def _next_seq(self, replica: int) -> int:
        seq, self._seqs[replica] = self._seqs[replica], self._seqs[replica] + 1
        return seq
