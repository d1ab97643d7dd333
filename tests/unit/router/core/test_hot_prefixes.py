"""Hot prefixes stay, rare ones make room, memory is bounded."""

from router.core.hot_prefixes import HotPrefixes


def test_the_most_used_prefix_comes_first_and_survives_many_rare_ones() -> None:
    hot = HotPrefixes(capacity=8)
    for rare in range(1000):
        hot.record(1, 32)
        hot.record(100 + rare, 2)
    assert len(hot.top(1000)) <= 16
    assert (hot.top(1)[0].block_hash, hot.top(1)[0].blocks) == (1, 32)


def test_one_lookup_in_eight_is_recorded() -> None:
    hot = HotPrefixes(capacity=8)
    assert sum(hot.is_due() for _ in range(80)) == 10
