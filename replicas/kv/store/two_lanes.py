"""One thread for work that may take long, with a fast lane."""

import logging
import threading
from collections import deque
from collections.abc import Callable

_log = logging.getLogger(__name__)

Job = Callable[[], None]

STOP_LIMIT_S = 5.0


class TwoLanes:
    """Jobs of a lane are done in their order, urgent ones before the others; may be given from any
    thread. Whoever gives them bounds them. A job that fails is logged. The thread begins with the
    first job."""

    def __init__(self, name: str) -> None:
        self._urgent: deque[Job] = deque()
        self._later: deque[Job] = deque()
        self._wake = threading.Condition()
        self._is_open = True
        self._name = name
        self._thread: threading.Thread | None = None

    def urgent(self, job: Job) -> None:
        self._add(self._urgent, job)

    def later(self, job: Job) -> None:
        self._add(self._later, job)

    def close(self) -> None:
        """Ends after the job in hand; what waits is not done."""
        with self._wake:
            self._is_open = False
            self._wake.notify()
        if self._thread is not None:
            self._thread.join(STOP_LIMIT_S)

    def _add(self, lane: deque[Job], job: Job) -> None:
        with self._wake:
            lane.append(job)
            self._wake.notify()
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
                self._thread.start()

    def _work(self) -> None:
        while (job := self._next()) is not None:
            try:
                job()
            except Exception:
                _log.exception("a job of the tiers below memory failed")

    def _next(self) -> Job | None:
        with self._wake:
            self._wake.wait_for(lambda: self._urgent or self._later or not self._is_open)
            if not self._is_open:
                return None
            return (self._urgent or self._later).popleft()
