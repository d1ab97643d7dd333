"""Text to token ids and back to the simulator's own words. Pure.

A word that the simulated engine says is one token, with the id that it was drawn with, so that an
answer sent back as text is found in the cache. Other text is cut into pieces of at most four
characters, whose ids are digests: equal text, equal ids, and nothing more.
"""

import re
from array import array
from functools import cache

import xxhash

from replicas.sim.text import VOCABULARY, piece

_FIRST_MARK, _FIRST_OTHER, _OTHERS = VOCABULARY, VOCABULARY + 256, 120_000
_PIECES = re.compile(r"\s*[^\W_]{1,4}|\s*[^\s]|\s+")
_OWN_WORD = re.compile(r" ([bdfghklmnprstvwz][aeio]){2}(?![^\W_])")

MARKS = ("<|begin|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>", "<|tool|>", "<|other|>")


def mark(name: str) -> int:
    """The id of one of `MARKS`; of the last for any other name."""
    return _FIRST_MARK + (MARKS.index(name) if name in MARKS else len(MARKS) - 1)


def tokenize(text: str) -> list[int]:
    """O(characters)."""
    ids: list[int] = []
    place = 0
    while place < len(text):
        found = _OWN_WORD.match(text, place)
        if found is None:
            found = _PIECES.match(text, place)
            assert found is not None
            ids.append(_other(found[0]))
        else:
            ids.append(_own_words()[found[0]])
        place = found.end()
    return ids


def pack(ids: list[int]) -> bytes:
    """As engines take prompts: little-endian u32."""
    return array("I", ids).tobytes()


def _other(text: str) -> int:
    return _FIRST_OTHER + xxhash.xxh32_intdigest(text.encode()) % _OTHERS


@cache
def _own_words() -> dict[str, int]:
    return {piece(token_id): token_id for token_id in range(VOCABULARY)}


def text_of(token_id: int) -> str:
    """The text of a token where it has one: own words and marks; others are shown by number."""
    if token_id < VOCABULARY:
        return piece(token_id)
    if token_id - _FIRST_MARK < len(MARKS):
        return MARKS[token_id - _FIRST_MARK]
    return f"<{token_id}>"
