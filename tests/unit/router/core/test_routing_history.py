"""The routing history: prefixes by replica, bounded by time and by size."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from router.core.routing_history import HistoryBounds, RoutingHistory
from router.core.types import Slot

SLOTS = np.arange(3)


def hashes(*keys: int) -> NDArray[np.uint64]:
    return np.array(keys, np.uint64)


def history(ttl_s: float = 10.0, blocks: int = 100) -> RoutingHistory:
    return RoutingHistory(HistoryBounds(ttl_s, blocks))


def test_a_replica_is_believed_to_hold_the_common_prefix_of_what_it_was_sent() -> None:
    seen = history()
    seen.record(Slot(1), hashes(1, 2, 3, 4), 0.0)
    assert seen.depths(hashes(1, 2, 3, 9, 8), SLOTS, 1.0).tolist() == [0, 3, 0]
    assert seen.depths(hashes(5), SLOTS, 1.0).tolist() == [0, 0, 0]
    assert seen.depths(hashes(), SLOTS, 1.0).tolist() == [0, 0, 0]


def test_a_block_is_forgotten_when_its_time_is_over_unless_it_was_sent_again() -> None:
    seen = history(ttl_s=10)
    seen.record(Slot(0), hashes(1, 2, 3), 0.0)
    seen.record(Slot(0), hashes(1, 2), 6.0)
    assert seen.depths(hashes(1, 2, 3), SLOTS, 9.9)[0] == 3
    assert seen.depths(hashes(1, 2, 3), SLOTS, 10.0)[0] == 2
    assert seen.depths(hashes(1, 2, 3), SLOTS, 16.0)[0] == 0


def test_past_the_bound_what_was_sent_longest_ago_leaves_from_its_end() -> None:
    seen = history(blocks=5)
    seen.record(Slot(0), hashes(1, 2, 3), 0.0)
    seen.record(Slot(0), hashes(11, 12, 13), 1.0)
    assert seen.depths(hashes(1, 2, 3), SLOTS, 2.0)[0] == 2
    assert seen.depths(hashes(11, 12, 13), SLOTS, 2.0)[0] == 3


def test_a_replica_that_is_gone_takes_its_part_along() -> None:
    seen = history()
    for slot in (0, 1):
        seen.record(Slot(slot), hashes(1, 2), 0.0)
    seen.forget(Slot(0))
    seen.forget(Slot(2))
    assert seen.depths(hashes(1, 2), SLOTS, 1.0).tolist() == [0, 2, 0]


@settings(deadline=None)
@given(
    prompts=st.lists(
        st.tuples(st.lists(st.integers(0, 2), max_size=6), st.integers(0, 1)), max_size=30
    ),
    asked=st.lists(st.integers(0, 2), max_size=6),
    blocks=st.integers(1, 40),
)
def test_equals_a_list_of_what_was_sent_when(
    prompts: list[tuple[list[int], int]], asked: list[int], blocks: int
) -> None:
    seen, last_sent = history(ttl_s=8, blocks=blocks), dict[tuple[int, int], int]()
    order: dict[tuple[int, int], None] = {}
    for at, (prompt, slot) in enumerate(prompts):
        keys = chained(prompt)
        seen.record(Slot(slot), hashes(*keys), float(at))
        for key in reversed(keys):
            last_sent[slot, key] = at
            order.pop((slot, key), None)
            order[slot, key] = None
    now = float(len(prompts))
    found = seen.depths(hashes(*chained(asked)), SLOTS, now)
    for slot in (0, 1):
        kept = [key for held, key in order if held == slot][-blocks:]
        depth = 0
        for key in chained(asked):
            if key not in kept or last_sent[slot, key] + 8 <= now:
                break
            depth += 1
        assert found[slot] == depth


def chained(prompt: list[int]) -> list[int]:
    """Equal numbers, equal prefixes."""
    return [int("1" + "".join(map(str, prompt[: end + 1]))) for end in range(len(prompt))]
