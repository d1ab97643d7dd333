"""Operations on contexts travel together: what comes while all calls are in the air waits for one.

A call with many operations costs the manager little more than a call with one.
"""

import asyncio
from collections import deque
from typing import NamedTuple, Protocol

from router.contexts.wire import Flight, Landing, Operation, Reply, encode
from router.core.errors import ContextsUnavailable

_MAX_FLIGHT_OPERATIONS = 64


class ContextConnection(Protocol):
    """One process's way to the manager of one application."""

    async def open(self) -> None:
        """Finds the manager or makes it. Raises `ContextsUnavailable`."""
        ...

    async def exchange(self, flight: bytes) -> Landing:
        """Raises `ContextsUnavailable` where it is not known what became of the flight."""
        ...


class _Passenger(NamedTuple):
    operation: Operation
    reply: "asyncio.Future[Reply]"


class Lane:
    """At most `max_in_air` calls at once and `max_waiting` operations behind them.

    Quick operations and those that wait for a disk belong on different lanes: a call is answered
    when the last of its operations is.
    """

    def __init__(
        self,
        connection: ContextConnection,
        limit_s: float,
        max_in_air: int = 2,
        max_waiting: int = 4096,
    ) -> None:
        self._connection = connection
        self._limit_s = limit_s
        self._max_in_air = max_in_air
        self._max_waiting = max_waiting
        self._queue: deque[_Passenger] = deque()
        self._flights: set[asyncio.Task[None]] = set()
        self._is_closed = False
        self.flights = 0

    async def send(self, operation: Operation) -> Reply:
        """Raises `ContextsUnavailable` where it is not known whether it was applied."""
        if self._is_closed or len(self._queue) >= self._max_waiting:
            raise ContextsUnavailable("Too many calls for contexts wait.")
        passenger = _Passenger(operation, asyncio.get_running_loop().create_future())
        self._queue.append(passenger)
        self._depart()
        return await passenger.reply

    async def close(self) -> None:
        self._is_closed = True
        for flight in self._flights:
            flight.cancel()
        await asyncio.gather(*self._flights, return_exceptions=True)
        self._strand(list(self._queue), ContextsUnavailable("The server is stopping."))
        self._queue.clear()

    def _depart(self) -> None:
        while self._queue and len(self._flights) < self._max_in_air:
            boarding = min(len(self._queue), _MAX_FLIGHT_OPERATIONS)
            passengers = [self._queue.popleft() for _ in range(boarding)]
            waiting = [passenger for passenger in passengers if not passenger.reply.done()]
            if waiting:
                flight = asyncio.create_task(self._fly(waiting))
                self._flights.add(flight)
                flight.add_done_callback(self._arrived)

    def _arrived(self, flight: "asyncio.Task[None]") -> None:
        self._flights.discard(flight)
        self._depart()

    async def _fly(self, passengers: list[_Passenger]) -> None:
        self.flights += 1
        message = encode(Flight([passenger.operation for passenger in passengers]))
        try:
            async with asyncio.timeout(self._limit_s):
                landing = await self._connection.exchange(message)
        except ContextsUnavailable as error:
            self._strand(passengers, error)
        except TimeoutError:
            self._strand(passengers, ContextsUnavailable("The context manager is silent."))
        except BaseException:
            self._strand(passengers, ContextsUnavailable("The context manager was not asked."))
            raise
        else:
            for passenger, reply in zip(passengers, landing.replies, strict=True):
                if not passenger.reply.done():
                    passenger.reply.set_result(reply)

    @staticmethod
    def _strand(passengers: list[_Passenger], error: ContextsUnavailable) -> None:
        for passenger in passengers:
            if not passenger.reply.done():
                passenger.reply.set_exception(error)
                passenger.reply.exception()
