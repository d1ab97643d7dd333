"""What a context claims of the KV stores: the blocks that end the objects of its history. Pure."""

from dataclasses import dataclass

import numpy as np

from router.core.hashing import NO_EXTRA_KEYS, chain_root, extend_chain, salt
from serve_app.admission import TOKEN_BYTES, Admitted


@dataclass(frozen=True, slots=True)
class ObjectClaims:
    """`object_blocks` blocks make an object; 0 where there are no stores."""

    object_blocks: int

    def of(self, admitted: Admitted, answer: bytes, block_size: int) -> bytes:
        """Hashes, packed u64, over the request's one prompt and its answer's token ids.

        `block_size` is the engine's. O(answer), and O(prompt) where the prompt was hashed by
        another block size.
        """
        if not self.object_blocks:
            return b""
        hashes = _hashes(admitted, answer, block_size)
        return np.array(hashes[self.object_blocks - 1 :: self.object_blocks], "<u8").tobytes()


def _hashes(admitted: Admitted, answer: bytes, block_size: int) -> list[int]:
    """Of all full blocks, with the tenant's salt."""
    request, known = admitted.request, admitted.blocks
    hashes = list(map(int, known.chains[0])) if known.block_size == block_size else []
    done_bytes = len(hashes) * block_size * TOKEN_BYTES
    tokens = request.prompts[0][done_bytes:] + answer
    return hashes + extend_chain(_parent(admitted, hashes, block_size), tokens, block_size)


def _parent(admitted: Admitted, hashes: list[int], block_size: int) -> int:
    if hashes:
        return hashes[-1]
    cache_salt = admitted.request.cache_salt
    keys = NO_EXTRA_KEYS if cache_salt is None else salt(cache_salt)
    return chain_root(block_size, keys.chain)
