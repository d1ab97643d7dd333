"""Seeded workloads in five kinds, as trace rows in blocks of `BLOCK_TOKENS` tokens. Pure."""

from collections.abc import Callable, Iterator, Mapping
from random import Random
from types import MappingProxyType

from router.replay.trace import TraceRow

BLOCK_TOKENS = 64

Rows = list[TraceRow]


class _Author:
    """Hands out blocks that nobody has used."""

    def __init__(self) -> None:
        self._next_id = 10**6

    def write(self, blocks: int) -> list[int]:
        self._next_id += blocks
        return list(range(self._next_id - blocks, self._next_id))


def sessions(
    rng: Random,
    rate: float,
    *,
    sessions: int = 400,
    turns: int = 8,
    groups: int = 12,
    system_blocks: int = 32,
    turn_blocks: int = 8,
    output_tokens: int = 128,
    think_s: float = 6.0,
) -> Rows:
    """Conversations on a few system prompts (Zipf), begun `rate` times a second.

    An answer becomes part of the next prompt; between two turns a user thinks 2 s and a random time
    of mean `think_s`.
    """
    author, start_s, rows = _Author(), 0.0, Rows()
    systems = [author.write(system_blocks) for _ in range(groups)]
    shares = [1 / (rank + 1) for rank in range(groups)]
    for number in range(sessions):
        start_s += rng.expovariate(rate)
        prefix, at_s = list(rng.choices(systems, shares)[0]), start_s
        for turn in range(turns):
            prefix = prefix + author.write(turn_blocks)
            label = "first turn" if turn == 0 else "later turn"
            rows.append(_row(at_s, prefix, output_tokens, f"session-{number}", label))
            prefix = prefix + author.write(output_tokens // BLOCK_TOKENS)
            at_s += rng.expovariate(1 / think_s) + 2
    return _by_whole_ms(rows)


def shared_prefix(
    rng: Random,
    rate: float,
    *,
    requests: int = 3200,
    groups: int = 40,
    prefix_blocks: int = 96,
    own_blocks: int = 16,
    output_tokens: int = 128,
) -> Rows:
    """Single requests on long shared instructions (Zipf): `rate` · 8 requests a second."""
    author = _Author()
    prefixes = [author.write(prefix_blocks) for _ in range(groups)]
    shares = [1 / (rank + 1) for rank in range(groups)]
    rows = Rows()
    for at_s in _arrivals(rng, 8 * rate, requests):
        group = rng.choices(range(groups), shares)[0]
        prompt = prefixes[group] + author.write(own_blocks)
        rows.append(_row(at_s, prompt, output_tokens, None, f"prefix {group:02d}"))
    return rows


def rag(
    rng: Random,
    rate: float,
    *,
    requests: int = 3200,
    documents: int = 400,
    per_request: int = 4,
    document_blocks: int = 16,
    system_blocks: int = 8,
    output_tokens: int = 128,
) -> Rows:
    """Questions on retrieved documents (Zipf): only equal documents in equal order are shared."""
    author = _Author()
    system = author.write(system_blocks)
    texts = [author.write(document_blocks) for _ in range(documents)]
    shares = [1 / (rank + 1) for rank in range(documents)]
    rows = Rows()
    for at_s in _arrivals(rng, 8 * rate, requests):
        found = sorted(set(rng.choices(range(documents), shares, k=per_request)))
        prompt = system + [block for number in found for block in texts[number]]
        rows.append(_row(at_s, prompt + author.write(2), output_tokens, None, "question"))
    return rows


def agents(
    rng: Random,
    rate: float,
    *,
    runs: int = 100,
    steps: int = 30,
    tools_blocks: int = 64,
    step_blocks: int = 6,
    output_tokens: int = 64,
    siblings: int = 4,
) -> Rows:
    """Long runs that grow with every step, one tool prompt for all; a third of the runs begins as
    `siblings` at once on one task."""
    author, start_s, rows = _Author(), 0.0, Rows()
    tools = author.write(tools_blocks)
    for number in range(runs):
        start_s += rng.expovariate(rate / 4)
        task = tools + author.write(8)
        burst = siblings if rng.random() < 1 / 3 else 1
        for sibling in range(burst):
            run = _steps(rng, author, task, start_s, steps // burst, step_blocks, output_tokens)
            label = "siblings" if burst > 1 else "alone"
            rows += [
                _row(at_s, prompt, output_tokens, f"run-{number}-{sibling}", label)
                for at_s, prompt in run
            ]
    return sorted(rows, key=lambda row: row.at_s)


def unique(
    rng: Random,
    rate: float,
    *,
    requests: int = 3200,
    prompt_tokens: int = 4096,
    output_tokens: int = 128,
) -> Rows:
    """Prompts that share nothing: where routing by cache has nothing to win."""
    return [
        TraceRow(at_s, rng.randint(prompt_tokens // 4, prompt_tokens * 7 // 4), output_tokens)
        for at_s in _arrivals(rng, 8 * rate, requests)
    ]


def _steps(
    rng: Random,
    author: _Author,
    task: list[int],
    start_s: float,
    steps: int,
    step_blocks: int,
    output_tokens: int,
) -> Iterator[tuple[float, list[int]]]:
    at_s, prompt = start_s, task
    for _ in range(max(steps, 1)):
        prompt = prompt + author.write(rng.randint(1, 2 * step_blocks - 1))
        yield at_s, prompt
        prompt = prompt + author.write(output_tokens // BLOCK_TOKENS)
        at_s += 2 + rng.expovariate(1 / 2)


def _row(
    at_s: float, prompt: list[int], output_tokens: int, session: str | None, label: str
) -> TraceRow:
    return TraceRow(at_s, len(prompt) * BLOCK_TOKENS, output_tokens, prompt, session, label)


def _by_whole_ms(rows: Rows) -> Rows:
    """As a trace file has them, in the order in which they come."""
    whole = [
        TraceRow(
            int(row.at_s * 1000) / 1000,
            row.prompt_tokens,
            row.output_tokens,
            row.block_ids,
            row.session,
            row.label,
        )
        for row in rows
    ]
    return sorted(whole, key=lambda row: row.at_s)


def _arrivals(rng: Random, rate: float, requests: int) -> Iterator[float]:
    at_s = 0.0
    for _ in range(requests):
        at_s += rng.expovariate(rate)
        yield at_s


Workload = Callable[[Random, float], Rows]

WORKLOADS: Mapping[str, Workload] = MappingProxyType(
    {
        "sessions": sessions,
        "shared_prefix": shared_prefix,
        "rag": rag,
        "agents": agents,
        "unique": unique,
    }
)
"""By name; each takes its chance and a rate, 4 of which keep eight replicas about half busy."""
