"""One rank's half of the connector: orders in, reports out, in the names that all ranks share.

A rank keeps its part of an object under a key of its own; the scheduler, the index and contexts
know the first rank's. What a rank cannot even try is refused like a load or a save that failed.
"""

from collections.abc import Sequence
from dataclasses import replace

from replicas.kv.connector.messages import LoadJob, SaveObject, StepReport
from replicas.kv.connector.transfers import Transfers
from replicas.kv.store.objects import ObjectKey

_TOLD_BY_ALL = frozenset(
    {"load_missing", "load_damaged", "load_failed", "save_dropped", "save_failed", "saved_bytes"}
)
"""Kinds of counts that are summed over ranks; of the others the first rank's stands for all."""


class RankWorker:
    """Refuses everything until it has `Transfers`."""

    def __init__(self) -> None:
        self._rank = 0
        self._transfers: Transfers | None = None
        self._refused: list[LoadJob] = []
        self._report = StepReport()
        self._lost: set[int] = set()

    def attach(self, transfers: Transfers, rank: int) -> None:
        self._transfers, self._rank = transfers, rank

    def load(self, jobs: Sequence[LoadJob]) -> None:
        for job in jobs:
            if self._transfers is None:
                self._refused.append(job)
            else:
                self._transfers.load(self._own_job(job))

    def save(self, orders: Sequence[SaveObject]) -> None:
        if self._transfers is None:
            self._report.unsaved += [order.key for order in orders]
        else:
            self._transfers.save([self._own_order(order) for order in orders])

    def finished(self) -> set[str]:
        """Requests whose loads are over since the last call; see `take_lost` and `report`."""
        refused, self._refused = self._refused, []
        for job in refused:
            blocks = {block for piece in job.pieces for block in piece.block_ids}
            self._report.failed_loads[job.request_id] = len(blocks)
            self._lost |= blocks
        done = {job.request_id for job in refused}
        if self._transfers is not None:
            loaded, lost = self._transfers.finished()
            done |= loaded
            self._lost |= lost
        return done

    def take_lost(self) -> set[int]:
        """Ids of blocks that loads which are over did not get."""
        lost, self._lost = self._lost, set()
        return lost

    def report(self) -> StepReport:
        """What happened since the last call."""
        report, self._report = self._report, StepReport()
        if self._transfers is not None:
            own = self._transfers.report()
            report.saved += map(self._renamed, own.saved)
            report.unsaved += map(self._renamed, own.unsaved)
            report.unusable += map(self._renamed, own.unusable)
            report.failed_loads |= own.failed_loads
        return report

    def counts(self) -> dict[str, int]:
        """By kind, since the start."""
        if self._transfers is None:
            return {}
        counts = dict(self._transfers.counts)
        return {k: n for k, n in counts.items() if not self._rank or k in _TOLD_BY_ALL}

    def close(self) -> None:
        if self._transfers is not None:
            self._transfers.close()

    def _own_order(self, order: SaveObject) -> SaveObject:
        """Where a prefix came from is told once."""
        origin = None if self._rank else order.origin
        return replace(order, key=self._renamed(order.key), origin=origin)

    def _own_job(self, job: LoadJob) -> LoadJob:
        return replace(job, pieces=tuple(replace(p, key=self._renamed(p.key)) for p in job.pieces))

    def _renamed(self, key: bytes) -> bytes:
        """From the name that all ranks share to this rank's own, and back."""
        return ObjectKey.unpack(key).of_rank(self._rank).pack() if self._rank else key
