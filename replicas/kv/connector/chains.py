"""The router's hashes of a request's blocks, as its tokens come. Pure."""

from collections.abc import Sequence

import numpy as np

from replicas.kv.store.origins import Origin
from router.core.hashing import NO_EXTRA_KEYS, chain_root, extend_chain, salt


class RouterChain:
    """Of one request without media or adapter; what of it was hashed is not hashed again."""

    def __init__(self, block_size: int, cache_salt: str | None) -> None:
        keys = NO_EXTRA_KEYS if cache_salt is None else salt(cache_salt)
        self._block_size = block_size
        self._cache_salt = cache_salt
        self._root = chain_root(block_size, keys.chain)
        self._hashes: list[int] = []

    def hashes(self, token_ids: Sequence[int], blocks: int) -> list[int]:
        """Of the first `blocks` blocks of `token_ids`. O(tokens not hashed before)."""
        known = len(self._hashes)
        if blocks > known:
            new = token_ids[known * self._block_size : blocks * self._block_size]
            parent = self._hashes[-1] if known else self._root
            packed = np.array(new, "<u4").tobytes()
            self._hashes += extend_chain(parent, packed, self._block_size)
        return self._hashes[:blocks]

    def origin(self, token_ids: Sequence[int], first: int, end: int) -> Origin:
        """Of the blocks from `first` to before `end`."""
        parent = self.hashes(token_ids, first)[-1] if first else None
        own = token_ids[first * self._block_size : end * self._block_size]
        return Origin(first, parent, np.array(own, "<u4").tobytes(), self._cache_salt)
