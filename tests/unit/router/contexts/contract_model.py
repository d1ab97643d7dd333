"""The contract of contexts told again, as simply as can be: whole lists, no sharing, no books.

Two copies of everything: what lives, and what a journal has. A crash makes the second the first.
"""

import copy
from dataclasses import dataclass, field

from router.contexts.context import Moment
from router.core.errors import (
    ContextBusy,
    ContextExpired,
    ContextNotFound,
    ContextQuotaExceeded,
    TurnConflict,
)

LEASE_S, TOMBSTONE_S, FLOOR_S, WAITERS = 10.0, 3600.0, 60.0, 3


@dataclass
class Told:
    """One context as the contract sees it; `busy` is a turn's nonce, `until` its lease's end."""

    tenant: str
    tokens: list[int]
    document: bytes
    ttl_s: int
    metadata: dict[str, str]
    last_used: float
    idle_until: float
    turns: int = 0
    last_nonce: int | None = None
    busy: int | None = None
    until: float = 0.0
    queue: list[tuple[int, int | None, float]] = field(default_factory=list)


class Model:
    """All in one dictionary. Whoever calls says when rows are written: `save`, `save_all`."""

    def __init__(self, max_contexts: int, max_tokens: int) -> None:
        self.live: dict[str, Told] = {}
        self.kept: dict[str, Told] = {}
        self.stones: dict[str, tuple[str, float]] = {}
        self.max_contexts = max_contexts
        self.max_tokens = max_tokens
        self.epoch = 1
        self.born_at = 0.0
        self.dirty: set[str] = set()
        self.granted: list[tuple[int, type[Exception] | tuple[int, ...]]] = []

    def find(self, tenant: str, name: str, now: Moment) -> Told:
        stone = self.stones.get(name)
        if stone is not None and stone[0] == tenant and now.monotonic < stone[1]:
            raise ContextExpired("")
        told = self.live.get(name)
        if told is None or told.tenant != tenant:
            raise ContextNotFound("")
        self.end_if_silent(name, now)
        if told.busy is None and told.idle_until <= now.monotonic:
            raise ContextExpired("")
        return told

    def use(self, told: Told, now: Moment, at: float | None = None) -> None:
        at = now.monotonic if at is None else at
        told.last_used = now.wall + at - now.monotonic
        told.idle_until = at + told.ttl_s

    def end_if_silent(self, name: str, now: Moment) -> None:
        told = self.live[name]
        if told.busy is not None and told.until <= now.monotonic:
            self.use(told, now, told.until)
            self.end(name, now)

    def end(self, name: str, now: Moment) -> None:
        self.live[name].busy = None
        self.dirty.add(name)
        self.serve(name, now)

    def serve(self, name: str, now: Moment) -> None:
        told = self.live[name]
        while told.busy is None and told.queue:
            nonce, expected, until = told.queue.pop(0)
            if told.idle_until <= now.monotonic:
                self.granted.append((nonce, ContextExpired))
            elif until <= now.monotonic:
                self.granted.append((nonce, ContextBusy))
            elif expected is not None and expected != told.turns:
                self.granted.append((nonce, TurnConflict))
            elif self.tokens(told.tenant) + 1 > self.max_tokens:
                self.granted.append((nonce, ContextQuotaExceeded))
            else:
                self.start(name, nonce, now)
                self.granted.append((nonce, tuple(told.tokens)))

    def start(self, name: str, nonce: int, now: Moment) -> None:
        told = self.live[name]
        self.dirty.add(name)
        self.use(told, now)
        told.busy, told.until = nonce, now.monotonic + LEASE_S

    def tokens(self, tenant: str) -> int:
        return sum(len(told.tokens) for told in self.live.values() if told.tenant == tenant)

    def check_room(self, tenant: str, tokens: int) -> None:
        count = sum(told.tenant == tenant for told in self.live.values())
        if count + 1 > self.max_contexts or self.tokens(tenant) + tokens > self.max_tokens:
            raise ContextQuotaExceeded("")

    def begin(
        self, tenant: str, name: str, nonce: int, expected: int | None, wait_s: float, now: Moment
    ) -> tuple[int, ...] | None:
        told = self.find(tenant, name, now)
        if told.busy == nonce:
            return tuple(told.tokens)
        if expected is not None and told.turns > expected:
            raise TurnConflict("")
        if told.busy is None:
            if expected is not None and expected != told.turns:
                raise TurnConflict("")
            if self.tokens(tenant) + 1 > self.max_tokens:
                raise ContextQuotaExceeded("")
            self.start(name, nonce, now)
            return tuple(told.tokens)
        if wait_s <= 0 or len(told.queue) >= WAITERS:
            raise ContextBusy("")
        told.queue.append((nonce, expected, now.monotonic + wait_s))
        return None

    def may_end(self, told: Told, nonce: int, turns: int, epoch: int, now: Moment) -> bool:
        if told.busy is not None:
            return told.busy == nonce
        is_young = now.monotonic < self.born_at + LEASE_S
        return epoch < self.epoch and turns == told.turns and is_young

    def sweep(self, now: Moment) -> None:
        """What timers do: leases, waits, tombstones. Expiry itself is a write of its own."""
        for name in list(self.live):
            self.end_if_silent(name, now)
        for told in self.live.values():
            late = [waiter for waiter in told.queue if waiter[2] <= now.monotonic]
            self.granted += [(nonce, ContextBusy) for nonce, _, _ in late]
            told.queue = [waiter for waiter in told.queue if waiter not in late]

    def expired(self, now: Moment) -> list[str]:
        return [
            name
            for name, told in self.live.items()
            if told.busy is None and told.idle_until <= now.monotonic
        ]

    def save(self, name: str) -> None:
        """The context's row is written, or its absence."""
        self.dirty.discard(name)
        if name in self.live:
            self.kept[name] = copy.deepcopy(self.live[name])
        else:
            self.kept.pop(name, None)

    def crash(self, stones: dict[str, tuple[str, float]], now: Moment) -> None:
        """Another life, from what was kept; `stones` are tombstones that were."""
        self.live = copy.deepcopy(self.kept)
        self.stones = stones
        self.epoch += 1
        self.born_at = now.monotonic
        self.granted, self.dirty = [], set()
        for told in self.live.values():
            told.queue = []
            left_s = told.last_used + told.ttl_s - now.wall
            told.idle_until = now.monotonic + max(min(left_s, told.ttl_s), FLOOR_S)
            if told.busy is not None:
                told.until = now.monotonic + LEASE_S
