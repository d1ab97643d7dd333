"""What the simulated engine says: a function of every token before, like a real model's.

Token ids are drawn from a digest of all ids before them, so one changed early token changes the
whole text, and a prompt that continues an answer continues its text.
"""

import xxhash

VOCABULARY = 4096
_ONSETS = ["b", "d", "f", "g", "h", "k", "l", "m", "n", "p", "r", "s", "t", "v", "w", "z"]
_VOWELS = ["a", "e", "i", "o"]
_SYLLABLES = [onset + vowel for onset in _ONSETS for vowel in _VOWELS]


def piece(token_id: int) -> str:
    """The text of one token: a space and a word of two syllables. Ids wrap at `VOCABULARY`."""
    first, second = divmod(token_id % VOCABULARY, len(_SYLLABLES))
    return f" {_SYLLABLES[first]}{_SYLLABLES[second]}"


def text(token_ids: list[int]) -> str:
    """The text of a run of tokens."""
    return "".join(map(piece, token_ids))


class Sampler:
    """Draws a sequence's next tokens. `variant` 0 is greedy; others are other draws.

    `prompt` is packed as little-endian u32.
    """

    __slots__ = ("_state",)

    def __init__(self, prompt: bytes, variant: int) -> None:
        self._state = xxhash.xxh3_64(prompt, seed=variant)

    def draw(self) -> int:
        """The next token id. O(1)."""
        token_id: int = self._state.intdigest() % VOCABULARY
        self._state.update(token_id.to_bytes(4, "little"))
        return token_id


def variant(temperature: float, seed: int | None, choice: int) -> int:
    """Which draw a choice is: greedy for temperature 0, else of its seed and number."""
    if temperature == 0:
        return 0
    return xxhash.xxh3_64_intdigest(f"{seed}/{choice}".encode())
