"""The hash chain of a sequence's full blocks, extended as tokens come."""

from array import array

import xxhash

from router.core.types import BlockHash


class HashChain:
    """Hashes of the leading full blocks of one token sequence, chained from the root.

    The salt enters the root block only; every later block inherits it through the chain.
    """

    def __init__(self, block_size: int, cache_salt: str | None) -> None:
        self._block_size = block_size
        self._salt = b"" if cache_salt is None else cache_salt.encode()
        self.hashes: list[BlockHash] = []

    def extend(self, tokens: "array[int]") -> None:
        """Hashes every block that became full. O(tokens in those blocks)."""
        while (len(self.hashes) + 1) * self._block_size <= len(tokens):
            start = len(self.hashes) * self._block_size
            block = tokens[start : start + self._block_size].tobytes()
            self.hashes.append(self._digest(block))

    def _digest(self, block: bytes) -> BlockHash:
        root = len(self._salt).to_bytes(4, "little") + self._salt
        parent = self.hashes[-1].to_bytes(8, "little") if self.hashes else root
        return BlockHash(xxhash.xxh3_64_intdigest(parent + block))
