"""Each difference between forecast and figure has the one cause that the log proves."""

from dataclasses import replace

import pytest

from replicas.engines.protocol import EngineReport, Routing
from replicas.kv.event_log import EventLog
from replicas.kv.mirror import Mirror
from replicas.kv.settling import Witness, causes_of
from replicas.settlement import Cause
from router.core.transfer import StoredRun, TransferRequest
from router.core.types import BookingId, Incarnation, ReplicaId, StoreId
from tests.contract.engine_client import make_request
from tests.unit.replicas.kv.engine_events import BLOCK_SIZE, removed, stored, tokens

HERE, THERE = ReplicaId("R1"), ReplicaId("R2")
DECIDED_AT = 10.0
BEFORE, AFTER = 9.0, 11.0


class Replica:
    """A mirror with its log. `decide` takes the route of a prompt as the index knows it then."""

    def __init__(self) -> None:
        self.log = EventLog()
        self.mirror = Mirror(HERE, Incarnation(1), BLOCK_SIZE, log=self.log)
        self.seq = -1

    def tell(self) -> None:
        self.seq = self.mirror.next_batch(100).seq

    def decide(self, overlap: int, *, forecast: int | None = None) -> Routing:
        return Routing(
            BookingId(1),
            (HERE, THERE),
            (overlap,),
            (overlap if forecast is None else forecast,),
            self.seq if self.seq >= 0 else None,
            DECIDED_AT,
        )

    def cause(
        self,
        routing: Routing,
        cached_blocks: int,
        prompt: str = "abcd",
        loads: tuple[StoredRun, ...] = (),
    ) -> Cause | None:
        """Of a request with one prompt."""
        request = replace(make_request(tokens(prompt)), transfer=TransferRequest(loads))
        report = EngineReport((cached_blocks * BLOCK_SIZE,))
        is_partial = self.mirror.is_partial
        witness = Witness(HERE, self.log, self.mirror.__contains__, is_partial)
        (cause,) = causes_of(request, routing, report, BLOCK_SIZE, witness)
        return cause


@pytest.fixture
def replica() -> Replica:
    """Holds two blocks, and the index knows."""
    replica = Replica()
    replica.mirror.apply([stored("ab")], at_s=1.0)
    replica.tell()
    return replica


def test_a_forecast_that_held_has_no_cause(replica: Replica) -> None:
    assert replica.cause(replica.decide(2), cached_blocks=2) is None


@pytest.mark.parametrize(("at_s", "cause"), [(BEFORE, "unconfirmed"), (AFTER, "in_flight")])
def test_more_than_forecast_depends_on_when_it_was_stored(
    replica: Replica, at_s: float, cause: str
) -> None:
    routing = replica.decide(2)
    replica.mirror.apply([stored("c", after="ab")], at_s=at_s)
    replica.tell()
    assert replica.cause(routing, cached_blocks=3) == cause


def test_a_block_that_went_after_the_index_knew_it_was_evicted(replica: Replica) -> None:
    routing = replica.decide(2)
    replica.mirror.apply(removed("b", after="a"), at_s=AFTER)
    assert replica.cause(routing, cached_blocks=1) is Cause.EVICTED
    replica.mirror.apply([stored("b", after="a")], at_s=AFTER)
    replica.tell()
    assert replica.cause(routing, cached_blocks=1) is Cause.EVICTED


def test_an_index_that_knew_something_else_was_stale(replica: Replica) -> None:
    assert replica.cause(replica.decide(3), cached_blocks=2) is Cause.INDEX_STALE
    assert replica.cause(replica.decide(1), cached_blocks=2) is Cause.INDEX_STALE


def test_an_index_without_any_word_of_the_replica_was_stale(replica: Replica) -> None:
    """A fresh index actor: the replica's own books were told to the one before."""
    replica.tell()
    old = Replica()
    old.mirror, old.log = replica.mirror, EventLog()
    assert old.cause(old.decide(0), cached_blocks=2) is Cause.INDEX_STALE


def test_a_sibling_that_had_not_stored_yet_was_in_flight(replica: Replica) -> None:
    """The forecast counted on a block of an earlier prompt of the same call."""
    routing = replica.decide(2, forecast=3)
    replica.mirror.apply([stored("c", after="ab")], at_s=AFTER)
    assert replica.cause(routing, cached_blocks=2) is Cause.IN_FLIGHT


@pytest.mark.parametrize(
    ("cached_blocks", "cause"),
    [(4, None), (3, Cause.LOAD_FAILED), (2, Cause.LOAD_FAILED), (1, Cause.EVICTED)],
)
def test_blocks_that_were_to_be_loaded_and_were_computed_instead(
    replica: Replica, cached_blocks: int, cause: Cause | None
) -> None:
    """By the time of the settlement the engine has stored what it computed."""
    routing = replica.decide(2, forecast=4)
    if cached_blocks < 2:
        replica.mirror.apply(removed("b", after="a"), at_s=AFTER)
    replica.mirror.apply([stored("cd", after="ab")], at_s=AFTER)
    replica.tell()
    run = StoredRun(0, 4, StoreId("s"), b"key")
    assert replica.cause(routing, cached_blocks, loads=(run,)) is cause
    elsewhere = replace(routing, ranked=(THERE, HERE))
    assert replica.cause(elsewhere, 3, loads=(run,)) is Cause.REROUTED


def test_another_replica_or_no_index_explain_any_difference(replica: Replica) -> None:
    routing = replica.decide(0)
    elsewhere = Routing(BookingId(1), (THERE, HERE), (0,), (0,), 5, DECIDED_AT)
    alone = Routing(BookingId(1), (), (0,), (0,), None, DECIDED_AT)
    fallback = Routing(BookingId(1), (HERE,), (0,), (0,), None, DECIDED_AT, is_fallback=True)
    assert replica.cause(elsewhere, 2) is Cause.REROUTED
    assert replica.cause(alone, 2) is Cause.FALLBACK
    assert replica.cause(fallback, 2) is Cause.FALLBACK
    assert replica.cause(routing, 0) is None


@pytest.mark.parametrize("cached_blocks", [0, 1, 3, 4, 9])
def test_what_no_event_explains_is_a_defect(replica: Replica, cached_blocks: int) -> None:
    """As if an event had been lost without a trace."""
    assert replica.cause(replica.decide(2), cached_blocks) is Cause.UNEXPLAINED


def test_events_that_were_lost_openly_explain_what_is_missing(replica: Replica) -> None:
    replica.mirror.lose()
    replica.tell()
    assert replica.cause(replica.decide(0), cached_blocks=2) is Cause.UNCONFIRMED
