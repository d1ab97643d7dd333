"""What of an engine changes the bytes of a KV block: two engines share blocks only if all is equal.

The prefix, with salt and adapter, is in the block's own hash; here is the rest. Pure.
"""

import dataclasses
import hashlib
import struct
from dataclasses import dataclass

_DOMAIN = b"warmpath/kv-namespace/1"


@dataclass(frozen=True, slots=True)
class Namespace:
    """All fields enter the digest by name, so that one that is added later parts old from new.

    `model` is the name under which it is served: each name's blocks are a directory's of their own.
    `weights` is a fingerprint of the model's weights, `adapters` of what may be loaded on top of
    them, `device` the kind of device or the instruction set that lays out the blocks, `layout` the
    order of a block's parts, `kv_heads` those of one rank.
    """

    model: str
    weights: str
    adapters: str
    engine_version: str
    dtype: str
    kv_dtype: str
    quantisation: str
    block_size: int
    layers: int
    kv_heads: int
    head_size: int
    layout: str
    device: str
    tensor_parallel_size: int
    pipeline_parallel_size: int
    rank: int
    kv_group: int
    hash_algorithm: str
    hash_seed: str

    @property
    def digest(self) -> bytes:
        """32 bytes."""
        digest = hashlib.blake2b(_DOMAIN, digest_size=32)
        for name, value in dataclasses.asdict(self).items():
            _feed(digest, name)
            _feed(digest, str(value))
        return digest.digest()


def _feed(digest: "hashlib.blake2b", text: str) -> None:
    """Length first: no two lists of texts give the same bytes."""
    data = text.encode()
    digest.update(struct.pack("<I", len(data)) + data)
