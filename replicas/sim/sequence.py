"""One sequence inside the simulated engine, and the pass that moves several on."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

from replicas.sim.chain import HashChain
from replicas.sim.pool import Block
from replicas.sim.text import Sampler
from router.core.types import BlockHash


class State(Enum):
    WAITING = auto()
    PREFILLING = auto()
    DECODING = auto()
    FINISHED = auto()


class SimSequence:
    """One prompt of `prompt_tokens` (at least 1) being continued by `max_tokens` (at least 1).

    `hashes` are the chained hashes of the leading full blocks: of the prompt at first, and one
    more whenever an output fills a block. `cached_tokens` is what the first admission found in the
    cache, None before it; `most_cached_tokens` the most that any admission did, which after a
    preemption includes much of the sequence's own. The rest belongs to the scheduler: `length`
    counts the tokens known when the sequence last began to wait or to decode, `computed_tokens`
    what a prefill has done of them, `order` its place among the running, `since` the pass in which
    it began to decode.
    """

    __slots__ = (
        "blocks",
        "cached_tokens",
        "computed_tokens",
        "hashes",
        "length",
        "max_tokens",
        "most_cached_tokens",
        "order",
        "prompt_tokens",
        "since",
        "state",
        "stored_blocks",
    )

    def __init__(self, prompt_tokens: int, max_tokens: int, hashes: list[BlockHash]) -> None:
        self.prompt_tokens = prompt_tokens
        self.max_tokens = max_tokens
        self.hashes = hashes
        self.state = State.WAITING
        self.cached_tokens: int | None = None
        self.most_cached_tokens = 0
        self.length = prompt_tokens
        self.computed_tokens = 0
        self.blocks: list[Block] = []
        self.stored_blocks = 0
        self.order = 0
        self.since = 0

    @property
    def last_length(self) -> int:
        """Tokens once all output has been drawn."""
        return self.prompt_tokens + self.max_tokens


class TextSequence(SimSequence):
    """A sequence that has its tokens: the prompt's and then the output's."""

    __slots__ = ("cache_salt", "chain", "sampler", "tokens")

    def __init__(
        self,
        tokens: "array[int]",
        max_tokens: int,
        sampler: Sampler,
        chain: HashChain,
        cache_salt: str | None = None,
    ) -> None:
        chain.extend(tokens)
        super().__init__(len(tokens), max_tokens, chain.hashes)
        self.tokens = tokens
        self.sampler = sampler
        self.chain = chain
        self.cache_salt = cache_salt

    def draw(self) -> int:
        """Appends the next token and returns it."""
        token_id = self.sampler.draw()
        self.tokens.append(token_id)
        self.chain.extend(self.tokens)
        return token_id


@dataclass(slots=True)
class Pass:
    """One forward pass: whom it moves on, and the sums that a latency model wants.

    `admitted` came from the queue into this pass; `prefilled` have their last known token computed
    at its end, in running order. `prefill_sequences` compute `prefill_tokens` prompt tokens in all,
    after `prefill_context_tokens` earlier ones. `decode_sequences` get a token that
    is not their first; their lengths add up to `decode_context_tokens`.
    """

    admitted: list[SimSequence] = field(default_factory=list)
    prefilled: list[SimSequence] = field(default_factory=list)
    prefill_sequences: int = 0
    prefill_tokens: int = 0
    prefill_context_tokens: int = 0
    decode_sequences: int = 0
    decode_context_tokens: int = 0

    def count_prefill(self, context_tokens: int, tokens: int) -> None:
        self.prefill_sequences += 1
        self.prefill_context_tokens += context_tokens
        self.prefill_tokens += tokens

    def count_decode(self, sequences: int, context_tokens: int) -> None:
        self.decode_sequences += sequences
        self.decode_context_tokens += context_tokens


@dataclass(frozen=True, slots=True)
class Advance:
    """What a pass brought: a first token to `first_tokens`, its last to `finished`."""

    first_tokens: Sequence[SimSequence]
    finished: Sequence[SimSequence]


@dataclass(frozen=True, slots=True)
class Drawn:
    """One token that a pass produced."""

    sequence: TextSequence
    token_id: int
    is_last: bool
