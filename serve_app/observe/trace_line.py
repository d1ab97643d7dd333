"""The access log's privacy mode: lines that can be replayed and tell nothing else.

A line has keyed hashes of the prompts' blocks, lengths and times. Equal beginnings of prompts have
equal hashes under one key, which is made of the server secret; without that key they say nothing
of a prompt, not even whether it is a given one.
"""

import hashlib
import os
import time
from base64 import b64encode

import numpy as np
from numpy.typing import NDArray

from serve_app.observe.record import RequestRecord

_PURPOSE = b"warmpath/access-log"
_HASH_BYTES = 8

Line = dict[str, object]


class TraceLines:
    """Without a `secret` the key is drawn here: prompts then match within this process only."""

    def __init__(self, secret: bytes | None) -> None:
        key = secret if secret is not None else os.urandom(32)
        self._key = hashlib.blake2b(_PURPOSE, key=hashlib.sha256(key).digest()).digest()

    def line(self, record: RequestRecord, ended_s: float) -> Line | None:
        """None where nothing was admitted that could be replayed. O(blocks).

        `output_tokens` of an answer in one piece is the client's limit.
        """
        admitted = record.admitted
        if admitted is None:
            return None
        age_s = time.monotonic() - record.started_s
        blocks = admitted.blocks
        return {
            "event": "request_trace",
            "at_s": round(time.time() - age_s, 3),
            "model": admitted.model,
            "session": self._keyed_name(record.session_hint),
            "status": record.status,
            "block_size": blocks.block_size,
            "output_tokens": _output_tokens(record),
            "prompts": [
                {"tokens": tokens, "hashes": self._keyed(chain)}
                for tokens, chain in zip(blocks.prompt_tokens, blocks.chains, strict=True)
            ],
            "first_item_ms": _ms(record.started_s, record.first_item_s),
            "duration_ms": _ms(record.started_s, ended_s),
        }

    def _keyed(self, chain: NDArray[np.uint64]) -> str:
        """Each block hash under the key, packed little-endian, in base64."""
        packed = chain.astype("<u8", copy=False).tobytes()
        starts = range(0, len(packed), _HASH_BYTES)
        return b64encode(
            b"".join([self._digest(packed[at : at + _HASH_BYTES]) for at in starts])
        ).decode()

    def _keyed_name(self, name: str | None) -> str | None:
        return None if name is None else self._digest(name.encode(errors="replace")).hex()

    def _digest(self, content: bytes) -> bytes:
        return hashlib.blake2b(content, key=self._key, digest_size=_HASH_BYTES).digest()


def _output_tokens(record: RequestRecord) -> int:
    assert record.admitted is not None
    if record.is_stream:
        return max(record.items, 1)
    return record.admitted.expected_output_tokens or 1


def _ms(started_s: float, at_s: float | None) -> float | None:
    return None if at_s is None else round((at_s - started_s) * 1000, 3)
