"""The journal and the table of contexts without Ray: commits a second, memory, restart time."""

import asyncio
import os
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import count, islice
from pathlib import Path

import numpy as np

from router.contexts.context import Moment
from router.contexts.journal import merged
from router.contexts.journals import open_journal
from router.contexts.messages import Kind, NewContext, TurnResult
from router.contexts.records import Entry, read_rows
from router.contexts.restoring import restored
from router.contexts.settings import ContextSettings
from router.contexts.table import ContextTable
from router.contexts.wire import Begin, Begun, Commit, Create, Flight, Operation, Reply, encode
from router.core.types import ContextId, Tenant
from router.serve.context_service import ContextService, open_service

TENANT = Tenant("bench")
_BATCH = 512


def settings(journal: str, application: str = "bench") -> ContextSettings:
    """Without a quota in the way."""
    return ContextSettings(
        application,
        journal,
        max_contexts_per_tenant=10**6,
        max_tokens_per_tenant=10**12,
        max_contexts=10**6,
        max_bytes=10**12,
    )


def token_ids(tokens: int, seed: int) -> bytes:
    return np.random.default_rng(seed).integers(0, 150_000, tokens, np.uint32).tobytes()


def create(name: str, tokens: int, seed: int) -> Create:
    new = NewContext("model", Kind.PROMPT, token_ids(tokens, seed), b"", 3600)
    return Create(TENANT, ContextId(name), new)


@dataclass(frozen=True, slots=True)
class Turns:
    """`history_tokens` before each turn, of which it replaces the last `new_tokens`."""

    history_tokens: int
    new_tokens: int

    def result(self, seed: int) -> TurnResult:
        kept = self.history_tokens - self.new_tokens
        return TurnResult(token_ids(self.new_tokens, seed), keep_tokens=kept)


async def commits_per_s(
    journal: str, turns: Turns, in_flight: int, seconds: float
) -> tuple[float, float]:
    """Durable commits a second with so many conversations at once, and their median seconds."""
    service = await open_service(open_journal(journal, "bench"), settings(journal), lambda: None)
    nonces = count(1)
    took: list[float] = []
    end = 0.0

    async def converse(number: int) -> None:
        name = f"ctx-{number}"
        await _ask(service, create(name, turns.history_tokens, number))
        result = turns.result(number)
        await started.wait()
        while time.perf_counter() < end:
            begin = Begin(TENANT, ContextId(name), next(nonces), "model", Kind.PROMPT, None, 0.0)
            begun = await _ask(service, begin)
            assert isinstance(begun, Begun)
            began_at = time.perf_counter()
            await _ask(service, Commit(begun.turn.ticket, result))
            took.append(time.perf_counter() - began_at)

    started = asyncio.Event()
    talks = [asyncio.create_task(converse(number)) for number in range(in_flight)]
    while len(service.table.shelf) < in_flight:  # noqa: ASYNC110 - the talks say it so
        await asyncio.sleep(0.01)
    end = time.perf_counter() + seconds
    started.set()
    began_at = time.perf_counter()
    await asyncio.gather(*talks)
    rate = len(took) / (time.perf_counter() - began_at)
    await service.close("done")
    return rate, float(np.median(took))


async def _ask(service: ContextService, operation: Operation) -> Reply:
    (reply,) = await service.exchange(encode(Flight([operation])))
    return reply


def writes_per_s(journal: str, turns: Turns, commits_at_once: int, seconds: float) -> float:
    """Commits a second of the journal by itself, in batches of so many."""
    batches = _commit_batches(turns, commits_at_once)
    target = open_journal(journal, "bench-alone")
    target.claim()
    prepared = [next(batches) for _ in range(64)]
    began_at, written = time.perf_counter(), 0
    while time.perf_counter() < began_at + seconds:
        target.write(prepared[written % len(prepared)])
        written += 1
    rate = written * commits_at_once / (time.perf_counter() - began_at)
    target.close()
    return rate


def _commit_batches(turns: Turns, commits: int) -> Iterator[list[Entry]]:
    """The rows of real commits; each batch is of other contexts than the one before."""
    table = ContextTable(settings("unused"), 1, 0.0)
    now, nonces = Moment(0.0, 0.0), count(1)
    for number in range(2 * commits):
        table.create(create(f"ctx-{number}", turns.history_tokens, number), now)
    while True:
        for half in (range(commits), range(commits, 2 * commits)):
            changes = []
            for number in half:
                name = ContextId(f"ctx-{number}")
                nonce = next(nonces)
                begin = Begin(TENANT, name, nonce, "model", Kind.PROMPT, None, 0.0)
                turn = table.begin(begin, now)
                assert turn is not None
                changes.append(table.commit(turn.ticket, turns.result(nonce), now).entries)
            yield merged(changes)


@dataclass(frozen=True, slots=True)
class Standing:
    """What many live contexts cost. `read_s` from an open journal to a table that serves."""

    contexts: int
    resident_bytes: int
    journal_bytes: int
    read_s: float


def fill(journal: str, contexts: int, tokens: int) -> None:
    target = open_journal(journal, "bench")
    target.claim()
    table = ContextTable(settings(journal), 1, 0.0)
    now, numbers = Moment(0.0, time.time()), iter(range(contexts))
    while batch := list(islice(numbers, _BATCH)):
        changes = [table.create(create(f"ctx-{n:032d}", tokens, n), now) for n in batch]
        target.write(merged(change.entries for change in changes))
    target.close()


def stand(journal: str) -> Standing:
    """Reads a filled journal. The memory means something in a fresh process only."""
    before, began_at = _resident_bytes(), time.perf_counter()
    target = open_journal(journal, "bench")
    epoch = target.claim()
    now = Moment(time.monotonic(), time.time())
    table, _ = restored(read_rows(target.rows()), settings(journal), epoch, now)
    took_s = time.perf_counter() - began_at
    grown = _resident_bytes() - before
    size = target.size_bytes()
    target.close()
    return Standing(len(table.shelf), grown, size, took_s)


def figures(standing: Standing) -> dict[str, float]:
    return asdict(standing)


def _resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
