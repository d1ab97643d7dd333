"""A workload as the replay takes it: requests by time of arrival, prompts as chains of blocks.

Pure. Traces name blocks of their own size; `Chainer` makes engine blocks of them.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest

from router.core.errors import ConfigurationError

Hashes = NDArray[np.uint64]

_PART = np.uint64(0x9E3779B97F4A7C15)
_MIX = np.uint64(0xBF58476D1CE4E5B9)
_SHIFT = np.uint64(29)
_63_BITS = np.uint64(2**63 - 1)
_FIRST_UNSHARED_ID = 2**62


@dataclass(frozen=True, slots=True)
class TraceRow:
    """One request of a trace. Lengths are in tokens.

    `block_ids` name the prompt's leading trace blocks, the last of which may be cut by the prompt's
    end; equal ids at the start are an equal start. What they do not cover nobody shares.
    `label` groups rows in the report, `session` is the client's hint, `block_size` the tokens of a
    trace block where the row itself says so.
    """

    at_s: float
    prompt_tokens: int
    output_tokens: int
    block_ids: Sequence[int] = ()
    session: str | None = None
    label: str = ""
    block_size: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class TraceRequest:
    """A row in engine blocks: `hashes` uint64 [full blocks], chained and below 2**63."""

    at_s: float
    prompt_tokens: int
    output_tokens: int
    hashes: Hashes
    session: str | None = None
    label: str = ""


class Chainer:
    """From trace blocks to engine blocks, several of which make one trace block.

    A chained hash of ids stands for a trace block and all before it, also where a trace uses one id
    after different prefixes. Raises `ConfigurationError` where the sizes do not fit.
    """

    def __init__(self, trace_block_size: int, block_size: int) -> None:
        if trace_block_size % block_size:
            raise ConfigurationError(
                "trace_block_size", f"{trace_block_size} is no multiple of block_size {block_size}"
            )
        self._trace_block_size = trace_block_size
        self._block_size = block_size
        self._parts = np.arange(1, trace_block_size // block_size + 1, dtype=np.uint64) * _PART
        self._next_id = _FIRST_UNSHARED_ID

    def requests(self, rows: Iterable[TraceRow], speed: float = 1.0) -> Iterator[TraceRequest]:
        """`speed` 2 makes the requests come twice as fast. O(blocks)."""
        for row in rows:
            yield TraceRequest(
                row.at_s / speed,
                row.prompt_tokens,
                row.output_tokens,
                self._hashes(row),
                row.session,
                row.label,
            )

    def _hashes(self, row: TraceRow) -> Hashes:
        needed = -(-row.prompt_tokens // self._trace_block_size)
        links = np.array(self._links(row.block_ids, needed), np.uint64)
        parts = links[:, None] ^ self._parts
        mixed = ((parts ^ (parts >> _SHIFT)) * _MIX) & _63_BITS
        hashes: Hashes = mixed.ravel()[: row.prompt_tokens // self._block_size]
        return hashes

    def _links(self, ids: Sequence[int], needed: int) -> list[int]:
        links, link = [], 0
        for block_id in ids[:needed]:
            link = xxh3_64_intdigest(b"%d,%d" % (link, block_id))
            links.append(link)
        for _ in range(needed - len(links)):
            self._next_id += 1
            links.append(xxh3_64_intdigest(b"%d" % self._next_id))
        return links
