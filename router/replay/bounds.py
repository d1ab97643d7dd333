"""What reuse a workload allows at best: with all caches as one, and with one that never evicts.

Pure. Requests are served one after the other in the order of their arrival, so that every block
counts at once; a real fleet may come above the pooled bound where that evicts the wrong blocks.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean

from router.replay.lru_blocks import LruBlocks, Served
from router.replay.trace import TraceRequest


@dataclass(frozen=True, slots=True)
class Bounds:
    """Shares of prompt tokens."""

    pooled: float
    infinite: float


def bounds(requests: Sequence[TraceRequest], pooled_blocks: int, block_size: int) -> Bounds:
    """O(blocks of all prompts)."""
    prompt_tokens = max(sum(request.prompt_tokens for request in requests), 1)
    return Bounds(
        block_size * _pooled_blocks(requests, pooled_blocks, block_size) / prompt_tokens,
        block_size * _infinite_blocks(requests, block_size) / prompt_tokens,
    )


def mean_bounds(several: Sequence[Bounds]) -> Bounds:
    return Bounds(mean(b.pooled for b in several), mean(b.infinite for b in several))


def _pooled_blocks(requests: Sequence[TraceRequest], total_blocks: int, block_size: int) -> int:
    cache = LruBlocks(total_blocks)
    return sum(
        cache.serve(served, block_size)
        for request in requests
        if (served := _served(request, block_size)).total_blocks <= total_blocks
    )


def _served(request: TraceRequest, block_size: int) -> Served:
    in_cache = request.prompt_tokens + request.output_tokens - 1  # the last is never computed
    return Served(tuple(request.hashes.tolist()), -(-in_cache // block_size), request.prompt_tokens)


def _infinite_blocks(requests: Sequence[TraceRequest], block_size: int) -> int:
    """Hashes are chained, so that the last one seen before stands for all before it."""
    seen: set[int] = set()
    found = 0
    for request in requests:
        hashes: list[int] = request.hashes.tolist()
        reusable = max(request.prompt_tokens - 1, 0) // block_size
        held = next((at for at, block in enumerate(hashes) if block not in seen), len(hashes))
        found += min(held, reusable)
        seen.update(hashes[held:])
    return found
