"""The hash chain of a sequence's full blocks, extended as tokens come."""

from array import array

from router.core.hashing import NO_EXTRA_KEYS, chain_root, extend_chain, salt
from router.core.types import BlockHash


class HashChain:
    """The router's own hashes of the leading full blocks of one token sequence."""

    def __init__(self, block_size: int, cache_salt: str | None) -> None:
        keys = NO_EXTRA_KEYS if cache_salt is None else salt(cache_salt)
        self._block_size = block_size
        self._tip = chain_root(block_size, keys.chain)
        self.hashes: list[BlockHash] = []

    def extend(self, tokens: "array[int]") -> None:
        """Hashes every block of `tokens` that became full. O(tokens in those blocks)."""
        start = len(self.hashes) * self._block_size
        if len(tokens) - start < self._block_size:
            return
        hashes = extend_chain(self._tip, tokens[start:].tobytes(), self._block_size)
        self.hashes += map(BlockHash, hashes)
        self._tip = self.hashes[-1]
