"""Counts travel as growth, and come together."""

from replicas.kv.connector.vllm_stats import GrowingCounts, TransferStats


def test_each_growth_is_told_once() -> None:
    told = GrowingCounts()
    first = told.grown({"loads": 2, "faults": 0})
    assert first is not None
    assert first.data == {"loads": 2}
    assert told.grown({"loads": 2, "faults": 0}) is None
    second = told.grown({"loads": 5, "faults": 1})
    assert second is not None
    assert second.data == {"loads": 3, "faults": 1}


def test_both_sides_add_up() -> None:
    total = TransferStats({"loads": 1}).aggregate(TransferStats({"loads": 2, "faults": 1}))
    assert total.to_dict() == {"loads": 3, "faults": 1}
    assert not total.is_empty()
    total.reset()
    assert total.is_empty()
