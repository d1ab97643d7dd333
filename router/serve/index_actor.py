"""The Ray shell of the block index: one call at a time, a timer of its own, succession.

A plain class with blocking methods: a serial actor takes half as many calls again as an
asynchronous one. No call waits for anything, but for `inherit` at the start of a successor.
Processes of its node reach what is called often by a socket, too; see `index_socket`.
"""

import gc
import logging
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random

import msgspec
import ray
from ray.actor import ActorHandle

from router.core.types import Incarnation
from router.serve.index_service import IndexService
from router.serve.index_settings import IndexSettings, unpack_settings
from router.serve.index_socket import Operation, SocketServer
from router.serve.wire import PROTOCOL, Landing, Receipt, Verdict, encode

_log = logging.getLogger(__name__)

_GRACE_S = 5.0
"""How long a retired actor goes on telling its callers where to turn."""
_PAGE_LIMIT_S = 10.0


@dataclass(slots=True)
class _Retiree:
    """The predecessor, and when to stop it."""

    actor: ActorHandle
    stops_at: float


class BlockIndexActor:
    """Named and detached, one for each application and model; `generations` makes it."""

    def __init__(self, settings: bytes) -> None:
        # A pass over all that was imported takes longer than callers wait for a decision.
        gc.collect()
        gc.freeze()
        self._lock = threading.Lock()
        self._service = _service(unpack_settings(settings))
        self._successor: str | None = None
        self._estate: Iterator[bytes] = iter(())
        self._retiree: _Retiree | None = None
        self._sweeps_failed = 0
        self._socket = SocketServer(
            {
                Operation.EXCHANGE: self.exchange,
                Operation.APPLY: self.apply,
                Operation.SNAPSHOT: self.snapshot,
            }
        )
        threading.Thread(target=self._sweep_forever, name="sweep", daemon=True).start()

    def hello(self, protocol: int) -> tuple[int, str]:
        """Own protocol and digest of the settings. Who speaks another `protocol` succeeds this."""
        if protocol != PROTOCOL:
            _log.info("a caller speaks protocol %d, this index %d", protocol, PROTOCOL)
        return PROTOCOL, self._service.settings.digest

    def configure(self, settings: bytes) -> None:
        """Another life under other settings, which takes over what this one knows."""
        with self._lock:
            heir = _service(unpack_settings(settings))
            for page in self._service.pages():
                heir.take_over(page, time.monotonic())
            self._service = heir

    def socket_address(self) -> tuple[str, str]:
        """This node's id, and the address on it of the actor's socket."""
        return ray.get_runtime_context().get_node_id(), self._socket.address

    def exchange(self, flight: bytes) -> bytes:
        """A caller's news and selections; see `wire.Flight` and `wire.Landing`."""
        with self._lock:
            if self._successor is not None:
                landing = Landing(self._service.incarnation, 0.0, 0, None, 0, [], [])
                return encode(msgspec.structs.replace(landing, successor=self._successor))
            return self._service.exchange(flight, time.monotonic())

    def register(self, registration: bytes) -> bytes:
        return self._receive(lambda service, now: service.register(registration, now))

    def apply(self, batch: bytes) -> bytes:
        return self._receive(lambda service, now: service.apply(batch, now))

    def snapshot(self, chunk: bytes) -> bytes:
        return self._receive(lambda service, now: service.snapshot(chunk, now))

    def forget(self, registration: bytes) -> bytes:
        return self._receive(lambda service, now: service.forget(registration))

    def report_stored(self, news: bytes) -> bytes:
        """What a store holds or has let go; see `store_wire.StoreNews`."""
        return self._receive(lambda service, now: service.report_stored(news, now))

    def forget_store(self, store_id: str) -> bytes:
        return self._receive(lambda service, now: service.forget_store(store_id))

    def stored_sizes(self, ends: bytes) -> bytes:
        """What is stored of the objects that end in these hashes: `store_wire.StoredSizes`."""
        with self._lock:
            return self._service.stored_sizes(ends)

    def hottest(self, limit: int) -> bytes:
        """The prefixes that most lookups share, as a MessagePack list of `HotPrefix` maps."""
        with self._lock:
            return msgspec.msgpack.encode(self._service.index.hottest(limit))

    def explain(self, booking_id: int) -> bytes:
        """The decision with all its candidates as MessagePack; nil once it is too long ago."""
        with self._lock:
            return msgspec.msgpack.encode(self._service.explain(booking_id))

    def stats(self) -> bytes:
        """Counts of everything by part, as a MessagePack map."""
        with self._lock:
            return msgspec.msgpack.encode(
                {
                    **self._service.stats(time.monotonic()),
                    "sweeps_failed": self._sweeps_failed,
                    "calls_failed": self._socket.failures,
                }
            )

    def inherit(self, predecessor: ActorHandle, own_name: str) -> None:
        """Takes over what the predecessor knows and stops it a little later. Idempotent.

        A predecessor that is gone leaves nothing: replicas and callers fill this index again.
        """
        if self._retiree is not None:
            return
        try:
            ray.get(predecessor.retire.remote(own_name), timeout=_PAGE_LIMIT_S)
            while page := ray.get(predecessor.next_page.remote(), timeout=_PAGE_LIMIT_S):
                with self._lock:
                    self._service.take_over(page, time.monotonic())
        except ray.exceptions.RayError as error:
            _log.warning("the predecessor left this block index without its estate: %s", error)
        self._retiree = _Retiree(predecessor, time.monotonic() + _GRACE_S)

    def retire(self, successor: str) -> None:
        """From here on callers are sent to `successor` and nothing changes any more."""
        with self._lock:
            self._successor = successor
            self._estate = self._service.pages()

    def next_page(self) -> bytes:
        """The next part of what a retired index knows; empty after the last."""
        return next(self._estate, b"")

    def _receive(self, deliver: Callable[[IndexService, float], bytes]) -> bytes:
        with self._lock:
            if self._successor is not None:
                incarnation = self._service.incarnation
                return encode(Receipt(incarnation, Verdict.MOVED, self._successor))
            return deliver(self._service, time.monotonic())

    def _sweep_forever(self) -> None:
        while True:
            time.sleep(self._service.settings.sweep_interval_s)
            try:
                self._sweep()
            except Exception:
                self._sweeps_failed += 1
                _log.exception("a sweep failed; what has lapsed stays until the next")

    def _sweep(self) -> None:
        with self._lock:
            if self._successor is None:
                self._service.sweep(time.monotonic())
        retiree = self._retiree
        if retiree is not None and time.monotonic() >= retiree.stops_at:
            retiree.stops_at = float("inf")
            ray.kill(retiree.actor, no_restart=True)


def _service(settings: IndexSettings) -> IndexService:
    """The wall clock tells lives apart: it goes on over restarts."""
    return IndexService(settings, Incarnation(time.time_ns()), Random())
