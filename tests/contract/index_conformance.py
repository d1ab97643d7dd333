"""Cases in which block indexes in the field were found wrong, told in an engine's own events.

Each case is a story about one replica and one prompt of letters, one block a letter; its outcome
is how many leading blocks the index says the replica holds at the end, or that it raised an error.
"""

import importlib
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from replicas.kv.events import BlockRemoved, BlockStored, EngineBatch, KVEvent
from replicas.kv.feed import EngineFeed
from replicas.kv.mirror import Mirror
from router.core.errors import WarmpathError
from router.core.hashing import NO_EXTRA_KEYS, adapter, hash_blocks
from router.core.index import BlockIndex
from router.core.types import Incarnation, ReplicaId, Tier
from tests.unit.replicas.kv.engine_events import (
    BLOCK_SIZE,
    CLEARED,
    engine_hash_of,
    removed,
    stored,
    tokens,
)


class Subject(Protocol):
    """An index that follows one replica's engine."""

    def receive(self, seq: int, *events: KVEvent, at_s: float | None = None) -> None:
        """An engine batch with this number arrives, published `at_s` (by default at its number)."""
        ...

    def delete_replica(self) -> None: ...

    def matched(self, prompt: str, lora: str | None = None) -> int:
        """Leading blocks that the replica is said to hold."""
        ...


class WarmpathSubject:
    """Feed, mirror and block index, with every batch sent at once."""

    def __init__(self) -> None:
        self._replica, life = ReplicaId("r"), Incarnation(1)
        self._mirror = Mirror(self._replica, life, BLOCK_SIZE)
        self._feed = EngineFeed(self._mirror)
        self._index = BlockIndex(1000, 1)
        self._slot = self._index.register(self._replica, life)

    def receive(self, seq: int, *events: KVEvent, at_s: float | None = None) -> None:
        self._feed.live(seq, EngineBatch(seq if at_s is None else at_s, events, 0, 0))
        self._index.apply(self._mirror.next_batch(1024))

    def delete_replica(self) -> None:
        self._index.forget(self._replica)

    def matched(self, prompt: str, lora: str | None = None) -> int:
        packed = np.array(tokens(prompt), "<u4").tobytes()
        keys = NO_EXTRA_KEYS if lora is None else adapter(lora, "")
        overlap = self._index.overlaps(hash_blocks(packed, BLOCK_SIZE, keys))
        return int(overlap.tiers[Tier.GPU, self._slot])


class DynamoSubject:
    """`RadixTree` of ai-dynamo-runtime; what it refuses it has not applied."""

    def __init__(self) -> None:
        os.environ.setdefault("DYN_LOG", "error")
        self._core: Any = importlib.import_module("dynamo._core")
        self._tree = self._core.RadixTree()

    def receive(self, seq: int, *events: KVEvent, at_s: float | None = None) -> None:
        for event in events:
            data = json.dumps({"event_id": seq, "data": self._data(event)}).encode()
            try:
                self._tree.apply_event(0, data)
            except RuntimeError:
                return

    def delete_replica(self) -> None:
        self._tree.remove_worker(0)

    def matched(self, prompt: str, lora: str | None = None) -> int:
        scores = self._tree.find_matches(self._hashes(tokens(prompt), BLOCK_SIZE, lora)).scores
        return int(scores.get((0, 0), 0))

    def _data(self, event: KVEvent) -> object:
        match event:
            case BlockStored():
                own = self._hashes(list(event.token_ids), event.block_size, event.lora_name)
                pairs = zip(event.block_hashes, own, strict=False)
                blocks = [{"block_hash": name, "tokens_hash": one} for name, one in pairs]
                return {"stored": {"parent_hash": event.parent_block_hash, "blocks": blocks}}
            case BlockRemoved():
                return {"removed": {"block_hashes": list(event.block_hashes)}}
            case _:
                return "cleared"

    def _hashes(self, ids: list[int], block_size: int, lora: str | None) -> list[int]:
        found: list[int] = self._core.compute_block_hash_for_seq(ids, block_size, lora_name=lora)
        return found


@dataclass(frozen=True, slots=True)
class Case:
    """`story` returns what the index says in the end; `expected` is what the engine holds."""

    name: str
    expected: int | str
    story: Callable[[Subject], int]

    def outcome(self, subject: Subject) -> str:
        try:
            return str(self.story(subject))
        except WarmpathError:
            return "error"


def _tell(subject: Subject, *batches: Sequence[KVEvent] | KVEvent) -> Subject:
    for seq, batch in enumerate(batches):
        subject.receive(seq, *(batch if isinstance(batch, Sequence) else [batch]))
    return subject


def _stored_twice_removed_once(subject: Subject) -> int:
    last = removed("b", after="a")
    return _tell(subject, stored("ab"), stored("b", after="a"), last).matched("ab")


def _hole_filled_alone(subject: Subject) -> int:
    hole = removed("b", after="a")
    return _tell(subject, stored("abcd"), hole, stored("b", after="a")).matched("abcd")


def _child_of_a_survivor(subject: Subject) -> int:
    hole, filled = removed("b", after="a"), stored("b", after="a")
    child = stored("e", after="abcd")
    return _tell(subject, stored("abcd"), hole, filled, child).matched("abcde")


def _survivor_removed(subject: Subject) -> int:
    hole, filled = removed("b", after="a"), stored("b", after="a")
    last = removed("d", after="abc")
    return _tell(subject, stored("abcd"), hole, last, filled).matched("abcd")


def _late_after_its_child(subject: Subject) -> int:
    subject.receive(0, stored("abc"))
    subject.receive(2, stored("e", after="abcd"))
    subject.receive(1, stored("d", after="abc"))
    return subject.matched("abcde")


def _engine_restarted(subject: Subject) -> int:
    _tell(subject, stored("a"), stored("b", after="a"), stored("c", after="ab"))
    subject.receive(0, stored("a"), at_s=100.0)
    return subject.matched("abc")


def _other_block_size(subject: Subject) -> int:
    size = 2 * BLOCK_SIZE
    subject.receive(0, BlockStored((engine_hash_of("ab"),), None, tuple(tokens("ab")), size))
    return subject.matched("ab")


def _adapter(subject: Subject) -> Subject:
    return _tell(subject, stored("ab", lora="a", keys=[("a",), ("a",)]))


def _deleted(subject: Subject) -> int:
    _tell(subject, stored("ab")).delete_replica()
    return subject.matched("ab")


CASES = (
    Case("a block stored twice and removed once is held", 2, _stored_twice_removed_once),
    Case("a hole is filled by its block alone", 4, _hole_filled_alone),
    Case("a child of a block behind a former hole is held", 5, _child_of_a_survivor),
    Case("a block behind a hole can be removed", 3, _survivor_removed),
    Case("a lost batch that arrives after its child counts", 5, _late_after_its_child),
    Case("an engine that restarted holds only what it stored since", 1, _engine_restarted),
    Case("another block size is an error", "error", _other_block_size),
    Case("an adapter's blocks are not the base model's", 0, lambda s: _adapter(s).matched("ab")),
    Case("an adapter's blocks are its own", 2, lambda s: _adapter(s).matched("ab", "a")),
    Case("a clear drops everything", 0, lambda s: _tell(s, stored("ab"), CLEARED).matched("ab")),
    Case("a deleted replica holds nothing", 0, _deleted),
)
