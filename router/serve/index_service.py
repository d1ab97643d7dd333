"""One life of the block index without Ray: all parts together, bytes in, bytes out.

Pure: the time is an argument. One caller at a time.
"""

from collections.abc import Iterator
from dataclasses import asdict
from random import Random

from router.core.events import EventBatch, SnapshotChunk
from router.core.index import BlockIndex
from router.core.ledger import LoadLedger
from router.core.types import BookingId, Incarnation, StoreId
from router.decision import Explanation
from router.selector import Selector
from router.serve.event_desk import EventDesk
from router.serve.flight_desk import FlightDesk
from router.serve.index_settings import IndexSettings
from router.serve.leases import ReplicaLeases
from router.serve.store_desk import StoreDesk
from router.serve.store_wire import decode_store_news
from router.serve.succession import pages, take_over
from router.serve.wire import decode_flight, decode_registration, encode


class IndexService:
    """`incarnation` is another one in every life; callers notice by it that all is to be told."""

    def __init__(self, settings: IndexSettings, incarnation: Incarnation, rng: Random) -> None:
        self.settings = settings
        self.incarnation = incarnation
        self.index = BlockIndex(settings.max_blocks, settings.max_replicas)
        self.ledger = LoadLedger(settings.max_replicas, settings.max_bookings)
        self.leases = ReplicaLeases(
            settings.max_replicas, settings.stale_after_s, settings.forget_after_s
        )
        self.selector = Selector(
            self.index,
            self.ledger,
            self.leases,
            rng,
            speculative_ttl_s=settings.speculative_ttl_s,
        )
        self.flights = FlightDesk(self.selector, self.ledger, self.leases, incarnation)
        self.events = EventDesk(self.index, self.selector, self.leases, self.ledger, incarnation)
        self.stores = StoreDesk(self.index, incarnation, settings.forget_after_s)

    def exchange(self, flight: bytes, now: float) -> bytes:
        """Raises `msgspec.MsgspecError` or `ValueError` on what is no flight."""
        return encode(self.flights.handle(decode_flight(flight), now, self.events.refilling))

    def register(self, registration: bytes, now: float) -> bytes:
        return encode(self.events.register(decode_registration(registration), now))

    def apply(self, batch: bytes, now: float) -> bytes:
        """Raises `MalformedMessage`; so does `snapshot`."""
        return encode(self.events.apply(EventBatch.unpack(batch), now))

    def snapshot(self, chunk: bytes, now: float) -> bytes:
        return encode(self.events.snapshot(SnapshotChunk.unpack(chunk), now))

    def forget(self, registration: bytes) -> bytes:
        return encode(self.events.forget(decode_registration(registration)))

    def report_stored(self, news: bytes, now: float) -> bytes:
        """Raises `msgspec.MsgspecError` or `ValueError` on what is no news of a store."""
        return encode(self.stores.report(decode_store_news(news), now))

    def forget_store(self, store_id: str) -> bytes:
        return encode(self.stores.forget(StoreId(store_id)))

    def stored_sizes(self, ends: bytes) -> bytes:
        """Raises `ValueError` where the ends are no whole hashes."""
        return encode(self.stores.sizes(ends))

    def sweep(self, now: float) -> None:
        """For a timer: what has lapsed goes without waiting for the next request."""
        self.events.sweep(now)
        self.stores.sweep(now)
        self.selector.sweep(now)

    def explain(self, booking_id: int) -> Explanation | None:
        return self.selector.explain(BookingId(booking_id))

    def stats(self, now: float) -> dict[str, object]:
        """Counts of everything by part; plain values."""
        return {
            "incarnation": self.incarnation,
            "replicas": len(self.leases),
            "candidates": len(self.leases.members(now)),
            "stores": len(self.stores),
            "refilling": self.events.refilling,
            "bookings": len(self.ledger),
            "ledger": asdict(self.ledger.counters),
            "selector": asdict(self.selector.counters),
            "index": asdict(self.index.stats()),
        }

    def pages(self) -> Iterator[bytes]:
        """All that a successor needs, in bounded pages."""
        return pages(self.index, self.ledger, self.leases)

    def take_over(self, page: bytes, now: float) -> None:
        take_over(page, self.events, self.flights, now)
