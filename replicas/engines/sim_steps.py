"""The simulated engine's step loop: passes one after the other, in real time."""

import asyncio
import time
from collections.abc import Callable

from replicas.engines.sim_faults import FaultKind, FaultScript
from replicas.sim.events import KVEvent, events_of
from replicas.sim.latency import LatencyModel
from replicas.sim.pool import BlockPool
from replicas.sim.scheduler import Scheduler
from replicas.sim.sequence import Drawn, Pass, SimSequence, State, TextSequence
from router.core.errors import EngineDead


class StepLoop:
    """Sleeps until each pass is due, and waits for `wake` while nothing is to be done."""

    def __init__(
        self,
        pool: BlockPool,
        scheduler: Scheduler,
        latency: LatencyModel,
        faults: FaultScript,
    ) -> None:
        self._pool = pool
        self._scheduler = scheduler
        self._latency = latency
        self._faults = faults
        self._work = asyncio.Event()
        self._due_s: float | None = None

    def wake(self) -> None:
        """There is work, or a fault to play."""
        self._work.set()

    def overdue_s(self) -> float:
        """For how long the pass that runs should have been over; 0 while idle."""
        return 0.0 if self._due_s is None else max(time.monotonic() - self._due_s, 0.0)

    async def run(
        self,
        on_token: Callable[[Drawn], None],
        on_events: Callable[[tuple[KVEvent, ...]], None],
    ) -> None:
        """Runs until cancelled; raises `EngineDead` where a fault says so."""
        while True:
            await self._play_fault()
            planned = self._scheduler.plan()
            if planned is None:
                await self._wait_for_work()
                continue
            await self._wait_for(planned)
            drawing = self._scheduler.drawing(planned)
            self._scheduler.complete(planned)
            if changes := self._pool.drain_changes():
                on_events(events_of(changes, self._scheduler.limits.block_size))
            for sequence in drawing:
                on_token(_draw(sequence))

    async def _wait_for_work(self) -> None:
        self._due_s = None
        self._work.clear()
        await self._work.wait()

    async def _wait_for(self, planned: Pass) -> None:
        """Counts from when the pass before was due, so that late wake-ups do not add up."""
        now_s, duration_s = time.monotonic(), self._latency.pass_s(planned)
        if self._due_s is None or now_s - self._due_s > duration_s:
            self._due_s = now_s
        self._due_s += duration_s
        await asyncio.sleep(max(self._due_s - now_s, 0.0))

    async def _play_fault(self) -> None:
        """Dies or stands still if that is due; a failing request waits for its next token."""
        match self._faults.due():
            case FaultKind.DIE:
                self._faults.played()
                raise EngineDead("The engine died.")
            case FaultKind.STALL:
                self._due_s = time.monotonic()
                await asyncio.Event().wait()


def _draw(sequence: SimSequence) -> Drawn:
    assert isinstance(sequence, TextSequence)
    return Drawn(sequence, sequence.draw(), sequence.state is State.FINISHED)
