"""The seam between a replica and the thing that turns token ids into tokens.

Every engine passes `tests/contract/test_engine_contract.py`.
"""

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from router.core.transfer import TransferRequest
from router.core.types import BookingId, ReplicaId


class Route(StrEnum):
    """Which of OpenAI's calls a request is; decides the shape of the answer."""

    CHAT = "chat"
    COMPLETIONS = "completions"
    RESPONSES = "responses"


@dataclass(frozen=True, slots=True)
class Routing:
    """How a request came to its replica, and what was expected of it there.

    `ranked` is the decision's order of replicas, best first; empty where Serve chose alone.
    Tuples of blocks have one entry per engine request, choices of one prompt side by side:
    `overlap_blocks` is what the index knew the first of `ranked` to hold, `forecast_blocks` what
    its engine is expected to report as cached. `decided_seq` is the last of that replica's event
    batches in the index at the decision, None where the index knew of none; `decided_at` is in
    seconds since the epoch. `is_fallback`: decided without the index.
    """

    booking_id: BookingId
    ranked: tuple[ReplicaId, ...]
    overlap_blocks: tuple[int, ...]
    forecast_blocks: tuple[int, ...]
    decided_seq: int | None
    decided_at: float
    is_fallback: bool = False


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """One admitted, rendered request.

    `body` is the client's JSON after the ingress's allow-list. `prompts` holds the rendered token
    ids of each prompt, packed as little-endian u32; engines use them as they are, and render
    `body` again only where `needs_render` says that ids cannot stand for it (echo, media).
    `cache_salt` isolates the tenant and replaces any salt in `body`. `reports_tokens` asks for the
    answer's token ids in the report, for a request of one choice. `transfer`: what is to be loaded
    from stores and what is to be kept there, for one prompt with one choice; None without stores.
    """

    request_id: str
    route: Route
    body: bytes
    prompts: tuple[bytes, ...]
    cache_salt: str | None
    is_stream: bool
    needs_render: bool = False
    routing: Routing | None = None
    reports_tokens: bool = False
    transfer: TransferRequest | None = None


@dataclass(frozen=True, slots=True)
class Output:
    """An answer's token ids as a next prompt continues them, packed as little-endian u32.

    `seen_tokens` are without a stop token or stop string that the client did not see, and without
    text after it. A token of which the client saw only the beginning is there as tokens of that
    beginning, or not at all. `generated_tokens` counts all that were generated.
    """

    seen_tokens: bytes
    generated_tokens: int


@dataclass(frozen=True, slots=True)
class EngineReport:
    """What an engine says of a request that it has served.

    `cached_tokens` has one entry per engine request, choices of one prompt side by side: the
    prompt tokens that were not computed because they were found in the cache or were loaded.
    `output` is there where the request asks for its tokens.
    """

    cached_tokens: tuple[int, ...]
    output: Output | None = None


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What a running engine says of itself. Blocks are of `block_size` tokens."""

    model: str
    block_size: int
    max_model_len: int
    total_blocks: int
    hash_algorithm: str
    kv_events_endpoint: str | None
    kv_replay_endpoint: str | None


@dataclass(frozen=True, slots=True)
class EngineWork:
    """Sums since an engine's start, of ended prefills and of ended loads from stores.

    `prefill_tokens` are the computed ones. A load that failed counts with the blocks that it got.
    """

    prefills: int = 0
    prefill_tokens: int = 0
    prefill_ms: float = 0.0
    loads: int = 0
    loaded_blocks: int = 0
    load_ms: float = 0.0


class Engine(Protocol):
    """One engine, from `start` to `stop`. All calls come from one event loop."""

    async def start(self) -> EngineInfo:
        """Loads the model, warms up and returns when requests can be served."""
        ...

    def generate(self, request: EngineRequest) -> AsyncGenerator[bytes | EngineReport, None]:
        """Yields the answer's body, and after it one report of an answer that is complete.

        Streamed: each item is one or more whole server-sent events, the last `data: [DONE]`
        (chat, completions) or the route's own final event. Otherwise: exactly one JSON document.
        Raises `RequestRejected` before the first item where the request is at fault, `EngineError`
        at any point where the engine is. Closing the iterator or cancelling its task aborts the
        request inside the engine at once.
        """
        ...

    async def reset_prefix_cache(self) -> bool:
        """Drops every reusable block; false where running requests hold some."""
        ...

    def num_unfinished(self) -> int:
        """Requests inside the engine, waiting or running; 0 means idle."""
        ...

    def kv_usage(self) -> float:
        """Share of the block pool that unfinished requests hold, 0 to 1, as of the last step."""
        ...

    def transfer_counts(self) -> dict[str, int]:
        """What it has loaded from KV stores and saved there since its start, by kind, as of the
        last step; empty without a store."""
        ...

    def work(self) -> EngineWork:
        """What it has done; stays at nothing in an engine that uses no stores."""
        ...

    async def check_health(self) -> None:
        """Raises `EngineDead` when the engine cannot serve any more, be it dead or stuck."""
        ...

    async def stop(self) -> None:
        """Ends the engine and every process of it. Idempotent."""
        ...
