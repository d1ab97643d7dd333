"""Many waiters, one call in the air: later requests wait together and leave in the next call.

Knows neither Ray nor the messages. One event loop owns each object.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Generic, TypeVar

Q = TypeVar("Q")
A = TypeVar("A")


class Cause(StrEnum):
    """Why a request got no answer from the index."""

    DEADLINE = "deadline"
    UNAVAILABLE = "unavailable"
    QUEUE_FULL = "queue_full"
    BREAKER_OPEN = "breaker_open"
    NO_CANDIDATE = "no_candidate"
    INVALID_POLICY = "invalid_policy"
    CLOSED = "closed"


@dataclass(slots=True, eq=False)
class Waiter(Generic[Q, A]):
    """A request with its deadline on the loop's clock; `result` gets the answer or the cause."""

    request: Q
    size_bytes: int
    deadline: float
    result: asyncio.Future[A | Cause]

    def answer(self, answer: A | Cause) -> bool:
        """False where nobody waits any more: the deadline passed, or the caller went away."""
        if self.result.done():
            return False
        self.result.set_result(answer)
        return True


@dataclass(slots=True, eq=False)
class Batch(Generic[Q, A]):
    """Waiters that leave in one call. `is_late` once one of them gave up on it."""

    waiters: list[Waiter[Q, A]] = field(default_factory=list)
    is_late: bool = False


class Coalescer(Generic[Q, A]):
    """Queue, deadlines and the one batch in the air.

    `depart` is called with a batch when one may leave; who called it reports `landed`. A batch
    that misses a deadline no longer holds back the next (`missed` is called, once a batch); its
    late answer is still reported, to waiters that are gone.
    """

    def __init__(
        self,
        depart: Callable[[Batch[Q, A]], None],
        missed: Callable[[], None],
        *,
        deadline_s: float,
        max_waiting: int,
        max_batch: int,
        max_batch_bytes: int,
    ) -> None:
        self._depart = depart
        self._missed = missed
        self.deadline_s = deadline_s
        self._max_waiting = max_waiting
        self._max_batch = max_batch
        self._max_batch_bytes = max_batch_bytes
        self._loop = asyncio.get_running_loop()
        self._queue: deque[Waiter[Q, A]] = deque()
        self._unanswered: deque[Waiter[Q, A]] = deque()
        self._aloft: Batch[Q, A] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._kick: asyncio.Handle | None = None
        self._is_due = False
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._unanswered)

    def submit(self, request: Q, size_bytes: int) -> asyncio.Future[A | Cause]:
        """Resolves to an answer, or within the deadline to the cause of having none."""
        result: asyncio.Future[A | Cause] = self._loop.create_future()
        if self._is_closed or len(self._unanswered) >= self._max_waiting:
            result.set_result(Cause.CLOSED if self._is_closed else Cause.QUEUE_FULL)
            return result
        waiter = Waiter(request, size_bytes, self._loop.time() + self.deadline_s, result)
        self._queue.append(waiter)
        self._unanswered.append(waiter)
        if self._timer is None:
            self._timer = self._loop.call_at(waiter.deadline, self._expire)
        self._kick_soon()
        return result

    def demand(self) -> None:
        """Lets a batch leave even if nobody waits: the caller has other things to say."""
        self._is_due = True
        self._kick_soon()

    def landed(self, batch: Batch[Q, A]) -> None:
        """The call of `batch` has ended, however it ended."""
        while self._unanswered and self._unanswered[0].result.done():
            self._unanswered.popleft()
        if self._aloft is batch:
            self._aloft = None
            self._kick_soon()

    def close(self) -> None:
        """Answers all waiters with `CLOSED`; nothing leaves any more."""
        self._is_closed = True
        for handle in (self._timer, self._kick):
            if handle is not None:
                handle.cancel()
        self._timer = self._kick = None
        for waiter in self._unanswered:
            waiter.answer(Cause.CLOSED)
        self._unanswered.clear()
        self._queue.clear()

    def _kick_soon(self) -> None:
        """At the end of the loop's turn, so that all who speak in it leave together."""
        if self._aloft is None and self._kick is None and not self._is_closed:
            self._kick = self._loop.call_soon(self._leave)

    def _leave(self) -> None:
        self._kick = None
        batch = self._take()
        if batch.waiters or self._is_due:
            self._is_due = False
            self._aloft = batch
            self._depart(batch)

    def _take(self) -> Batch[Q, A]:
        batch: Batch[Q, A] = Batch()
        size_bytes = 0
        while self._queue and len(batch.waiters) < self._max_batch:
            size_bytes += self._queue[0].size_bytes
            if batch.waiters and size_bytes > self._max_batch_bytes:
                break
            waiter = self._queue.popleft()
            if not waiter.result.done():
                batch.waiters.append(waiter)
        return batch

    def _expire(self) -> None:
        """Deadlines are equal, so that the queue's order is theirs and one timer serves all.

        While `deadline_s` has just been changed, one may be answered as late as the one before it.
        """
        self._timer = None
        now = self._loop.time()
        has_expired = False
        while self._unanswered:
            waiter = self._unanswered[0]
            if not waiter.result.done():
                if waiter.deadline > now:
                    self._timer = self._loop.call_at(waiter.deadline, self._expire)
                    break
                waiter.result.set_result(Cause.DEADLINE)
                has_expired = True
            self._unanswered.popleft()
        if has_expired:
            self._release_aloft()

    def _release_aloft(self) -> None:
        batch = self._aloft
        if batch is not None and not batch.is_late:
            batch.is_late = True
            self._aloft = None
            self._missed()
            self._kick_soon()
