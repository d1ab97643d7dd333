"""What follows missed deadlines: the breaker opens, and probes until it closes.

One leaves every interval, and one with each late answer: that shows that the index lives, and a
probe tells whether it keeps up. So a moment's silence costs no whole interval.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress

from router.serve.breaker import Breaker
from router.serve.link_settings import LinkCounters

_log = logging.getLogger(__name__)


class Prober:
    """Owned by one event loop. `fly` starts a call that only probes, unless there is no room.

    Its task is true where the call was answered, which counts within `deadline_s`.
    """

    def __init__(
        self,
        breaker: Breaker,
        deadline_s: float,
        counters: LinkCounters,
        fly: Callable[[], asyncio.Task[bool] | None],
    ) -> None:
        self.deadline_s = deadline_s
        self._breaker = breaker
        self._counters = counters
        self._fly = fly
        self._heard = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def missed(self) -> None:
        """A call missed its deadline."""
        loop = asyncio.get_running_loop()
        self._counters.flights_late += 1
        if self._breaker.missed(loop.time()):
            self._counters.breaker_opened += 1
            _log.warning("the block index missed its deadlines; deciding locally, probing it")
            self._heard.clear()
            self._task = loop.create_task(self._probe())

    def answered(self) -> None:
        """A call was answered in time."""
        if self._breaker.answered():
            self._counters.breaker_closed += 1
            _log.info("the block index answers in time again")

    def answered_late(self) -> None:
        """A call that had missed its deadline was answered after all."""
        self._heard.set()

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _probe(self) -> None:
        loop = asyncio.get_running_loop()
        while self._breaker.is_open:
            with suppress(TimeoutError):
                wait_s = self._breaker.probe_wait_s(loop.time())
                await asyncio.wait_for(self._heard.wait(), wait_s)
            self._heard.clear()
            self._breaker.probed(loop.time())
            flight = self._fly()
            if flight is not None:
                await asyncio.wait({flight}, timeout=self.deadline_s)
                self._judge(flight)

    def _judge(self, probe: asyncio.Task[bool]) -> None:
        is_answered = probe.done() and not probe.cancelled() and probe.exception() is None
        if is_answered and probe.result():
            self.answered()
