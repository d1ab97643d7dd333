"""Turns that wait for another's end: first come, first served, each to its own deadline."""

from collections import deque
from dataclasses import dataclass

from router.contexts.wire import Begin
from router.core.errors import ContextBusy
from router.core.types import ContextId


@dataclass(frozen=True, slots=True)
class Waiter:
    """`until` is monotonic."""

    begin: Begin
    until: float


class WaitingTurns:
    """By context; at most `limit` for each."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._queues: dict[ContextId, deque[Waiter]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._queues.values()))

    def add(self, begin: Begin, until: float) -> None:
        """The same nonce again keeps its place. Raises `ContextBusy` where too many wait."""
        queue = self._queues.setdefault(begin.context_id, deque())
        if any(waiter.begin.nonce == begin.nonce for waiter in queue):
            return
        if len(queue) >= self._limit:
            raise ContextBusy("Too many turns wait for this context.")
        queue.append(Waiter(begin, until))

    def remove(self, context_id: ContextId, nonce: int) -> None:
        queue = self._queues.get(context_id, deque())
        self._keep(context_id, [waiter for waiter in queue if waiter.begin.nonce != nonce])

    def pop(self, context_id: ContextId) -> Waiter | None:
        """The one that came first; None where nobody waits."""
        queue = self._queues.get(context_id)
        if queue is None:
            return None
        waiter = queue.popleft()
        self._keep(context_id, queue)
        return waiter

    def overdue(self, now: float) -> list[Begin]:
        """Removes and returns all whose time is over. O(all that wait)."""
        overdue = []
        for context_id, queue in list(self._queues.items()):
            late = [waiter.begin for waiter in queue if waiter.until <= now]
            if late:
                overdue += late
                self._keep(context_id, [waiter for waiter in queue if waiter.until > now])
        return overdue

    def _keep(self, context_id: ContextId, waiters: deque[Waiter] | list[Waiter]) -> None:
        if waiters:
            self._queues[context_id] = deque(waiters)
        else:
            self._queues.pop(context_id, None)
