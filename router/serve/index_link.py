"""One process's traffic with the block index: flights out, landings in, breaker and probes.

Every path is counted. Decides nothing about requests; that is the client's.
"""

import asyncio
import logging
from contextvars import Context
from typing import Protocol

from router.core.errors import IndexUnavailable
from router.core.types import ReplicaId
from router.serve.actor_lives import ActorLives
from router.serve.breaker import Breaker
from router.serve.caller_bookings import CallerBookings, LiveBooking, Notes
from router.serve.coalescing import Batch, Cause, Coalescer
from router.serve.flights import Booked, pack_flight
from router.serve.link_settings import LinkCounters, LinkSettings
from router.serve.prober import Prober
from router.serve.wire import MAX_FLIGHT_REQUESTS, Announcement, Answer, Landing, Outcome

_log = logging.getLogger(__name__)

_MAX_NOTES = 1024
_MAX_ANNOUNCED = 256
_MAX_ALOFT = 8
_MAX_FLIGHT_BYTES = 64 * 1024
"""Ray carries arguments up to 100 KB in the call itself; larger ones take the object store."""

IndexBatch = Batch[Booked, Answer]


class IndexConnection(Protocol):
    """The way to the actor, whichever generation of it lives."""

    async def exchange(self, flight: bytes) -> Landing:
        """Raises `IndexUnavailable` where there is no actor, or it died with the call."""
        ...


class IndexLink:
    """Owned by one event loop. `bookings` is shared with the client, who writes its news there."""

    def __init__(
        self, connection: IndexConnection, bookings: CallerBookings, settings: LinkSettings
    ) -> None:
        self.members: tuple[ReplicaId, ...] = ()
        self.counters = LinkCounters()
        self._settings = settings
        self._connection = connection
        self._bookings = bookings
        self._loop = asyncio.get_running_loop()
        self._breaker = Breaker(settings.misses_to_open, settings.probe_interval_s)
        self._prober = Prober(self._breaker, settings.deadline_s, self.counters, self._fly_empty)
        self._actor = ActorLives(settings.deadline_s)
        self._aloft: set[asyncio.Task[bool]] = set()
        self._note_timer: asyncio.TimerHandle | None = None
        self._renewal = self._loop.call_later(settings.lease_s / 3, self._renew)
        self._coalescer: Coalescer[Booked, Answer] = Coalescer(
            self._depart,
            self._prober.missed,
            deadline_s=settings.deadline_s,
            max_waiting=settings.max_waiting,
            max_batch=MAX_FLIGHT_REQUESTS,
            max_batch_bytes=_MAX_FLIGHT_BYTES,
        )

    @property
    def is_broken(self) -> bool:
        """The breaker is open: asking would only cost a deadline."""
        return self._breaker.is_open

    def adjust(self, settings: LinkSettings) -> None:
        """Other times from the next request on; those that wait keep their deadlines."""
        self._settings = settings
        self._breaker.adjust(settings.misses_to_open, settings.probe_interval_s)
        self._coalescer.deadline_s = settings.deadline_s
        self._prober.deadline_s = settings.deadline_s

    def ask(self, booked: Booked) -> "asyncio.Future[Answer | Cause]":
        return self._coalescer.submit(booked, len(booked.request.hashes))

    def tell_soon(self, delay_s: float | None = None) -> None:
        """News travels with the next request, or alone a little later."""
        if self._note_timer is None:
            delay_s = self._settings.note_delay_s if delay_s is None else delay_s
            self._note_timer = self._loop.call_later(delay_s, self._tell)

    async def close(self) -> None:
        """Answers all waiters, tells the last news, ends every task."""
        self._renewal.cancel()
        if self._note_timer is not None:
            self._note_timer.cancel()
        self._coalescer.close()
        if self._bookings.has_news and not self.is_broken:
            await asyncio.wait({self._start(Batch())}, timeout=self._settings.deadline_s * 5)
        await self._prober.close()
        for task in self._aloft:
            task.cancel()
        await asyncio.gather(*self._aloft, return_exceptions=True)

    def _tell(self) -> None:
        self._note_timer = None
        if self._bookings.has_news and not self.is_broken:
            self._coalescer.demand()

    def _renew(self) -> None:
        self._bookings.renew()
        self._tell()
        self._renewal = self._loop.call_later(self._settings.lease_s / 3, self._renew)

    def _depart(self, batch: IndexBatch) -> None:
        if len(self._aloft) < _MAX_ALOFT:
            self._start(batch)
        else:
            _fail(batch, Cause.UNAVAILABLE)
            self._coalescer.landed(batch)

    def _start(self, batch: IndexBatch) -> asyncio.Task[bool]:
        # Ray cancels a call with the request in whose context it was made; this one is for many.
        task = self._loop.create_task(self._fly(batch), context=Context())
        self._aloft.add(task)
        task.add_done_callback(self._ended)
        return task

    def _fly_empty(self) -> asyncio.Task[bool] | None:
        """A probe; it carries the news that waited. None where too many calls are out."""
        return self._start(Batch()) if len(self._aloft) < _MAX_ALOFT else None

    def _ended(self, task: asyncio.Task[bool]) -> None:
        self._aloft.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.counters.flights_failed += 1
            _log.error("a flight to the block index broke; its requests decide locally: %r", error)

    async def _fly(self, batch: IndexBatch) -> bool:
        """One call, from packing to the waiters' answers. True where it was answered."""
        notes = self._bookings.take_notes(_MAX_NOTES)
        announced = self._bookings.take_announcements(_MAX_ANNOUNCED)
        flight = self._pack(batch, notes, announced)
        self.counters.flights += 1
        sent_at = self._loop.time()
        try:
            async with asyncio.timeout(self._settings.call_limit_s):
                landing = await self._connection.exchange(flight)
        except (IndexUnavailable, TimeoutError) as error:
            self._crash(batch, notes, announced, error)
            return False
        else:
            self._land(batch, landing, sent_at)
            return True
        finally:
            self._coalescer.landed(batch)

    def _pack(self, batch: IndexBatch, notes: Notes, announced: list[Announcement]) -> bytes:
        to_actor = self._actor.clock.to_actor
        booked = [(waiter.request, to_actor(waiter.deadline)) for waiter in batch.waiters]
        return pack_flight(
            booked,
            notes,
            announced,
            lease_s=self._settings.lease_s,
            members_version=self._actor.members_version,
        )

    def _crash(
        self, batch: IndexBatch, notes: Notes, announced: list[Announcement], error: Exception
    ) -> None:
        _log.debug("the block index did not answer: %s", error)
        self.counters.flights_failed += 1
        self._bookings.put_back(notes, announced)
        for waiter in batch.waiters:
            self._bookings.release(waiter.request.booking_id)  # it may have been carried out
            self.tell_soon(self._settings.repeat_after_s)
        _fail(batch, Cause.UNAVAILABLE)
        if not batch.is_late:
            self._prober.missed()

    def _land(self, batch: IndexBatch, landing: Landing, sent_at: float) -> None:
        if self._actor.meet(landing, sent_at, self._loop.time()):
            self._introduce()
        self.members = self._actor.members
        if landing.unplaced:
            self._bookings.announce_again(landing.unplaced)
            self.tell_soon(self._settings.repeat_after_s)
        self._answer(batch, landing.answers)
        if batch.is_late:
            self._prober.answered_late()
        elif batch.waiters:
            self._prober.answered()

    def _answer(self, batch: IndexBatch, answers: list[Answer]) -> None:
        """Books what has been decided; a decision for which nobody waits any more is released."""
        for waiter, answer in zip(batch.waiters, answers, strict=True):
            is_booked = answer.outcome == Outcome.CHOSEN
            if waiter.answer(answer):
                if is_booked:
                    booking = _live_booking(waiter.request, answer)
                    self._bookings.add(waiter.request.booking_id, booking, is_announced=True)
            elif is_booked:
                self.counters.late_answers += 1
                self._bookings.release(waiter.request.booking_id)
                self.tell_soon()

    def _introduce(self) -> None:
        """Another life of the actor is told of every live booking again."""
        self.counters.incarnations += 1
        self._bookings.announce_all()
        self.tell_soon()


def _fail(batch: IndexBatch, cause: Cause) -> None:
    for waiter in batch.waiters:
        waiter.answer(cause)


def _live_booking(booked: Booked, answer: Answer) -> LiveBooking:
    request = booked.request
    return LiveBooking(
        answer.ranked[0],
        request.tenant,
        request.prompt_tokens,
        answer.uncached_tokens,
        request.block_size,
    )
