"""The two block indexes under comparison, each behind the calls that its users would make."""

import gc
import importlib
import importlib.util
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np

from router.core.events import EventBatch
from router.core.hashing import pack_hashes, unpack_hashes
from router.core.index import BlockIndex
from router.core.types import BookingId, Incarnation, ReplicaId, Slot, Tier
from serve_app.bench.index_workload import Blocks, Step, Traffic

Call = Callable[[], object]


class Side(Protocol):
    """Turns steps and questions, ahead of time, into calls whose time is taken."""

    name: str

    def apply(self, step: Step) -> Call: ...

    def find(self, prompt: Blocks) -> Call: ...


class Ours:
    """The complete index: tiers, speculative entries, a cap. Starts from packed bytes."""

    name = "warmpath"

    def __init__(self, replicas: int, max_blocks: int) -> None:
        self.index = BlockIndex(max_blocks, replicas)
        for replica in range(replicas):
            self.index.register(ReplicaId(f"replica-{replica}"), Incarnation(1))

    def apply(self, step: Step) -> Call:
        data, index = step.ours(), self.index
        return lambda: index.apply(EventBatch.unpack(data))

    def find(self, prompt: Blocks) -> Call:
        data, index = pack_hashes(prompt.chained), self.index
        return lambda: index.overlaps(unpack_hashes(data))

    def apply_together(self, steps: Sequence[Step]) -> Call:
        """Steps of one replica as the one batch that it would send."""
        first = EventBatch.unpack(steps[0].ours())
        runs = tuple(run for step in steps for run in EventBatch.unpack(step.ours()).stored)
        data, index = replace(first, stored=runs).pack(), self.index
        return lambda: index.apply(EventBatch.unpack(data))

    def book(self, traffic: Traffic, bookings: int) -> None:
        """Puts speculative entries into the index, as a router would: most where most of the prompt
        is held, one in eight on the next best replica."""
        for number in range(bookings):
            hashes = traffic.question().chained
            ranked = self.index.overlaps(hashes).tiers[Tier.GPU].argsort()
            slot = Slot(int(ranked[-1 if number % 8 else -2]))
            self.index.speculate(BookingId(number + 1), slot, hashes, expires_at=1e9)


class Dynamo:
    """`RadixTree` of ai-dynamo-runtime through its Python binding, from JSON and lists."""

    name = "dynamo"

    def __init__(self) -> None:
        self.tree = dynamo_core().RadixTree()

    def apply(self, step: Step) -> Call:
        data, tree, replica = step.dynamo(), self.tree, step.replica
        return lambda: tree.apply_event(replica, data)

    def find(self, prompt: Blocks) -> Call:
        content, tree = prompt.content.tolist(), self.tree
        return lambda: tree.find_matches(content).scores


def dynamo_core() -> Any:
    """Dynamo's binding, without its line of log per call."""
    os.environ.setdefault("DYN_LOG", "error")
    return importlib.import_module("dynamo._core")


def has_dynamo() -> bool:
    return importlib.util.find_spec("dynamo") is not None


def resident_bytes() -> int:
    """The resident set of this process."""
    gc.collect()
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def as_depths(scores: dict[tuple[int, int], int], replicas: int) -> list[int]:
    """Dynamo's answer in the form of ours."""
    depths = np.zeros(replicas, np.int64)
    for (replica, _), blocks in scores.items():
        depths[replica] = blocks
    return depths.tolist()
