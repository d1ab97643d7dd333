"""What the connector has counted, as vLLM carries it from an engine's processes to its replica."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorStats


@dataclass
class TransferStats(KVConnectorStats):
    """`data`: counts by kind since the statistics before."""

    def reset(self) -> None:
        self.data: dict[str, int] = {}

    def aggregate(self, other: KVConnectorStats) -> "TransferStats":
        self.data = dict(Counter(self.data) + Counter(other.data))
        return self

    def reduce(self) -> dict[str, int | float]:
        return dict(self.data)

    def is_empty(self) -> bool:
        return not self.data


class GrowingCounts:
    """Tells counts that only grow as what has come since they were told."""

    def __init__(self) -> None:
        self._told: dict[str, int] = {}

    def grown(self, counts: Mapping[str, int]) -> TransferStats | None:
        """None where nothing has."""
        growth = {kind: n - self._told.get(kind, 0) for kind, n in counts.items()}
        self._told = dict(counts)
        news = {kind: n for kind, n in growth.items() if n}
        return TransferStats(news) if news else None
