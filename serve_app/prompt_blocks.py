"""A rendered request as the router sees it: chains of block hashes, and what an engine may reuse.

Pure. Hashing takes time with the length of the prompts: it belongs on the render loop.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, takewhile

import numpy as np
from numpy.typing import NDArray

from router.core.hashing import NO_EXTRA_KEYS, hash_blocks, pack_hashes, salt
from serve_app.allow_list import ApiRoute

Hashes = NDArray[np.uint64]

MAX_LOOKED_UP_PROMPTS = 64
MAX_LOOKED_UP_BLOCKS = 8192
"""Of a list of prompts. Those beyond are served like the others, with nothing forecast of them."""

_TOKEN_BYTES = 4


@dataclass(frozen=True, slots=True, eq=False)
class PromptBlocks:
    """`chains` and `prompt_tokens` of each prompt, and `choices`, the engine requests of each.

    `shared_blocks`: leading blocks in common with an earlier prompt, computed once for both.
    `is_blind`: the token ids do not tell what the engine will cache, as with media or without a
    renderer; then nothing is looked up, and `prompt_tokens` may be an estimate.
    """

    block_size: int
    chains: tuple[Hashes, ...]
    prompt_tokens: tuple[int, ...]
    shared_blocks: tuple[int, ...]
    choices: int = 1
    reads_cache: bool = True
    is_blind: bool = False

    @property
    def is_single(self) -> bool:
        """One prompt of known tokens, answered once: what a store can help with."""
        return not self.is_blind and len(self.chains) == self.choices == 1

    @property
    def tokens_to_compute(self) -> int:
        """Of all prompts on an engine that holds none of them."""
        return sum(self.prompt_tokens) - self.block_size * sum(self.shared_blocks)

    def looked_up(self) -> tuple[Hashes, ...]:
        """The chains that the index is asked for: one of any length, or a bounded part of many."""
        if self.is_blind:
            return ()
        few = self.chains[:MAX_LOOKED_UP_PROMPTS]
        lengths = accumulate(map(len, few))
        fitting = sum(1 for _ in takewhile(lambda total: total <= MAX_LOOKED_UP_BLOCKS, lengths))
        return few[: max(fitting, 1)]

    def overlaps(self, found: Sequence[int]) -> tuple[int, ...]:
        """Confirmed blocks of each engine request, from those of the chains that were looked up."""
        padded = [*found, *[0] * (len(self.prompt_tokens) - len(found))]
        return tuple(np.repeat(padded, self.choices).tolist())

    def forecast(self, found: Sequence[int]) -> tuple[int, ...]:
        """Blocks of each engine request that its engine will report as cached.

        A prompt finds what the replica holds and what an earlier prompt of the same request has
        left; a further choice of the same prompt finds all of it. The last token is always
        computed, so that a block which ends in it is not reused.
        """
        padded = [*found, *[0] * (len(self.prompt_tokens) - len(found))]
        return tuple(
            chain.from_iterable(
                self._choices(held, shared, tokens)
                for held, shared, tokens in zip(
                    padded, self.shared_blocks, self.prompt_tokens, strict=True
                )
            )
        )

    def _choices(self, held: int, shared: int, tokens: int) -> list[int]:
        if not self.reads_cache or self.is_blind:
            return [0] * self.choices
        reusable = (tokens - 1) // self.block_size
        return [min(max(held, shared), reusable), *[reusable] * (self.choices - 1)]


def hash_prompts(
    prompts: Sequence[bytes],
    block_size: int,
    cache_salt: str | None,
    *,
    choices: int = 1,
    reads_cache: bool = True,
) -> PromptBlocks:
    """`prompts` are token ids, packed little-endian u32. O(tokens)."""
    keys = NO_EXTRA_KEYS if cache_salt is None else salt(cache_salt)
    chains = tuple(hash_blocks(prompt, block_size, keys) for prompt in prompts)
    lengths = tuple(len(prompt) // _TOKEN_BYTES for prompt in prompts)
    return PromptBlocks(block_size, chains, lengths, _shared_blocks(chains), choices, reads_cache)


def blind(prompt_tokens: int, block_size: int, choices: int) -> PromptBlocks:
    """A request that is placed by load alone. `prompt_tokens` may be an estimate."""
    nothing = np.empty(0, np.uint64)
    return PromptBlocks(
        block_size, (nothing,), (max(prompt_tokens, 1),), (0,), choices, is_blind=True
    )


def packed(chains: Sequence[Hashes]) -> bytes:
    return b"".join(map(pack_hashes, chains))


def reads_cache(route: ApiRoute, body: Mapping[str, object]) -> bool:
    """Whether the engine looks for cached blocks: not where it needs every prompt token's output.

    An echo with log-probabilities asks for those of the prompt; in a chat 0 of them is the default.
    """
    if body.get("prompt_logprobs") is not None:
        return False
    if not body.get("echo"):
        return True
    if route is ApiRoute.CHAT:
        return body.get("top_logprobs", 0) is None
    return body.get("logprobs") is None


def _shared_blocks(chains: Sequence[Hashes]) -> tuple[int, ...]:
    """Hashes are chained, so that a block seen before stands for all before it. O(blocks)."""
    if len(chains) == 1:
        return (0,)
    seen: set[int] = set()
    shared = []
    for hashes in chains:
        own = hashes.tolist()
        shared.append(sum(1 for _ in takewhile(seen.__contains__, own)))
        seen.update(own)
    return tuple(shared)
