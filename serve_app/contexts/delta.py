"""What a turn adds to its context's prompt: two renderings compared with each other. Pure.

Never with the stored ids: an answer that would be tokenised differently than it was generated
leaves them as they are.
"""

from itertools import takewhile
from typing import TypeVar

import numpy as np

from router.contexts.messages import TOKEN_BYTES

Rendering = TypeVar("Rendering", str, list[int])
"""Text, or ids where a model's template gives nothing else."""


def delta(before: Rendering, after: Rendering, closing: Rendering) -> Rendering | None:
    """What follows the stored ids in `after`, which is `before` and the new messages.

    `closing` is what ends `before` and was never generated: the template's end of an answer. None
    where the template rewrites what was before.
    """
    start = len(before) - len(closing)
    if before[start:] != closing or after[: len(before)] != before:
        return None
    return after[start:]


def common_end(one: Rendering, other: Rendering) -> Rendering:
    """The longest end of both."""
    pairs = zip(reversed(one), reversed(other), strict=False)
    length = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    return one[len(one) - length :]


def common_tokens(one: bytes, other: bytes) -> int:
    """How many leading ids two packed runs have in common. O(tokens)."""
    size = min(len(one), len(other))
    differ = np.frombuffer(one[:size], "<u4") != np.frombuffer(other[:size], "<u4")
    return int(differ.argmax()) if differ.any() else size // TOKEN_BYTES
