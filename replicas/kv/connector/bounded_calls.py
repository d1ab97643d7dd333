"""Calls that end in time, whatever they call: who waits no longer leaves the call behind."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")

MAX_CALLS = 8
"""At once, those left behind included: past it a call fails at its deadline without being made."""


class BoundedCalls:
    """Each call has a thread of its own, which ends with it and keeps no process alive."""

    def __init__(self, max_calls: int = MAX_CALLS) -> None:
        self._slots = threading.Semaphore(max_calls)

    def run(self, work: Callable[[], T], timeout_s: float) -> T:
        """Raises what `work` raises, and `TimeoutError` where it has not ended in time."""
        deadline = time.monotonic() + timeout_s
        if not self._slots.acquire(timeout=max(timeout_s, 0.0)):
            raise TimeoutError("too many calls have not come back")
        call: Future[T] = Future()
        threading.Thread(target=self._carry_out, args=(work, call), daemon=True).start()
        return call.result(max(deadline - time.monotonic(), 0.0))

    def _carry_out(self, work: Callable[[], T], call: "Future[T]") -> None:
        try:
            result = work()
        except BaseException as error:
            call.set_exception(error)
        else:
            call.set_result(result)
        finally:
            self._slots.release()
