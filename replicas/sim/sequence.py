"""One sequence inside the simulated engine, and the pass that moves several on."""

from array import array
from dataclasses import dataclass, field
from enum import Enum, auto

from replicas.sim.chain import HashChain
from replicas.sim.pool import BlockId
from replicas.sim.text import Sampler


class State(Enum):
    WAITING = auto()
    RUNNING = auto()
    FINISHED = auto()


@dataclass(slots=True, eq=False)
class SimSequence:
    """One prompt being continued by at most `max_tokens` tokens (at least 1).

    `tokens` are the prompt's and then the output's. `cached_tokens` is what the first admission
    found in the cache, `None` before it.
    """

    tokens: "array[int]"
    max_tokens: int
    sampler: Sampler
    chain: HashChain
    cache_salt: str | None = None
    state: State = State.WAITING
    cached_tokens: int | None = None
    computed_tokens: int = 0
    blocks: list[BlockId] = field(default_factory=list)
    stored_blocks: int = 0
    prompt_tokens: int = field(init=False)

    def __post_init__(self) -> None:
        self.prompt_tokens = len(self.tokens)
        self.chain.extend(self.tokens)

    @property
    def missing_tokens(self) -> int:
        """Tokens to compute before the next one can be drawn."""
        return len(self.tokens) - self.computed_tokens

    @property
    def output_tokens(self) -> int:
        """Tokens drawn so far."""
        return len(self.tokens) - self.prompt_tokens

    @property
    def is_decoding(self) -> bool:
        return self.missing_tokens == 1 and self.computed_tokens >= self.prompt_tokens

    def draw(self) -> int:
        """Appends the next token and returns it."""
        token_id = self.sampler.draw()
        self.tokens.append(token_id)
        self.chain.extend(self.tokens)
        return token_id


@dataclass(frozen=True, slots=True)
class Pass:
    """One forward pass: tokens to compute for each sequence, and the sums a latency model wants.

    `decode_context_tokens` is the sum of the decoding sequences' lengths.
    """

    work: dict[SimSequence, int]
    prefill_tokens: int
    decode_sequences: int
    decode_context_tokens: int

    @classmethod
    def of(cls, work: dict[SimSequence, int]) -> "Pass":
        decoding = [sequence for sequence in work if sequence.is_decoding]
        return cls(
            work=work,
            prefill_tokens=sum(work.values()) - len(decoding),
            decode_sequences=len(decoding),
            decode_context_tokens=sum(len(sequence.tokens) for sequence in decoding),
        )


@dataclass(frozen=True, slots=True)
class Drawn:
    """One token that a pass produced."""

    sequence: SimSequence
    token_id: int
    is_last: bool
