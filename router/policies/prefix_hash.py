"""Each prefix of a chosen length to a replica of its own while that has room. Pure.

Needs neither sessions nor events. It suits prompts that share long beginnings of a known length.
"""

from random import Random
from typing import ClassVar

from pydantic import Field, model_validator

from router.policies.base import Choice, Facts, Reason
from router.policies.hashing import BoundedLoadParameters, place_by_key


class PrefixHashParameters(BoundedLoadParameters):
    """`boundary_tokens` or `boundary_blocks`: how much of a prompt's start decides, in tokens
    (rounded down to full blocks, at least one) or in blocks; 512 tokens if neither is given."""

    boundary_tokens: int | None = Field(None, ge=1)
    boundary_blocks: int | None = Field(None, ge=1)

    @model_validator(mode="after")
    def _one_boundary(self) -> "PrefixHashParameters":
        if self.boundary_tokens is not None and self.boundary_blocks is not None:
            raise ValueError("boundary_tokens and boundary_blocks exclude each other")
        return self

    def blocks(self, block_size: int) -> int:
        if self.boundary_blocks is not None:
            return self.boundary_blocks
        return max((self.boundary_tokens or 512) // block_size, 1)


class PrefixHash:
    """The key is the chained hash of the boundary's block, which stands for all before it; of a
    shorter prompt, that of its last full block. One without a full block goes by load."""

    name: ClassVar[str] = "prefix_hash"
    needs_overlap: ClassVar[bool] = False
    needs_load: ClassVar[bool] = True
    history: ClassVar[None] = None

    def __init__(self, parameters: PrefixHashParameters) -> None:
        self._parameters = parameters

    def choose(self, facts: Facts, rng: Random) -> Choice:
        blocks = min(self._parameters.blocks(facts.block_size), len(facts.hashes))
        key = facts.hashes[blocks - 1].tobytes() if blocks else None
        return place_by_key(key, facts, self._parameters, Reason.PREFIX_HASH, rng)
