"""A request's routing from decision to end, over a whole block index in this process."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from random import Random

import numpy as np
import pytest

from replicas.engines.protocol import EngineRequest, Route
from router.core.errors import IndexUnavailable
from router.core.events import NO_PARENT, EventBatch
from router.core.events import StoredRun as HeldRun
from router.core.hashing import hash_blocks
from router.core.transfer import Keeping, StoredRun, TransferRequest
from router.core.types import Incarnation, ReplicaId, StoreId, Tenant, Tier
from router.serve.flight_desk import REFILLING
from router.serve.index_client import IndexClient
from router.serve.index_service import IndexService
from router.serve.index_settings import IndexSettings
from router.serve.switchboard import DeploymentKey, Member, Switchboard
from router.serve.wire import Landing, Registration, decode_landing, encode
from serve_app.admission import Admitted
from serve_app.observe.decision_headers import alias, decision_headers
from serve_app.prompt_blocks import hash_prompts
from serve_app.routing import ClientHints, LiveRequest, ModelRouter, forbids_storing
from serve_app.tuning import Tuning, parse_tuning

BLOCK_SIZE = 4
R1, R2 = ReplicaId("r1"), ReplicaId("r2")
NO_HINTS = ClientHints()


class LocalIndex:
    """The actor's inside, asked without Ray. `is_down` refuses every call, and while `open` is not
    set none is answered."""

    def __init__(self, *replicas: ReplicaId) -> None:
        settings = IndexSettings(max_replicas=8, max_blocks=4096, max_bookings=64)
        self.service = IndexService(settings, Incarnation(1), Random(1))
        self.is_down = False
        self.open = asyncio.Event()
        self.open.set()
        for replica_id in replicas:
            self.service.register(encode(Registration(replica_id, 1)), self.now())

    def hold(self, replica_id: ReplicaId, prompt: bytes) -> None:
        run = HeldRun(Tier.GPU, NO_PARENT, hash_blocks(prompt, BLOCK_SIZE))
        batch = EventBatch(replica_id, Incarnation(1), 0, (run,))
        self.service.apply(batch.pack(), self.now())

    def now(self) -> float:
        return asyncio.get_running_loop().time()

    async def exchange(self, flight: bytes) -> Landing:
        if self.is_down:
            raise IndexUnavailable("down")
        await self.open.wait()
        return decode_landing(self.service.exchange(flight, self.now()))


def prompt(*token_ids: int) -> bytes:
    return np.array(token_ids, dtype="<u4").tobytes()


def admitted(*prompts: bytes, block_size: int = BLOCK_SIZE) -> Admitted:
    request = EngineRequest("id", Route.COMPLETIONS, b"{}", prompts, None, False)
    blocks = hash_prompts(prompts, block_size, None)
    return Admitted("model", Tenant("t"), request, blocks)


STORE = StoreId("store")


@pytest.fixture
async def keeper(index: LocalIndex, tuning: Tuning) -> AsyncIterator[ModelRouter]:
    """A router in front of replicas with a store, which r2 is near."""
    message = encode(Registration(R2, 1, store_id=STORE))
    index.service.register(message, index.now())
    client = IndexClient(index, Random(3), parse_tuning({"index_deadline_ms": 1000}).link)
    yield ModelRouter(client, tuning, BLOCK_SIZE, keeps_kv=True)
    await client.close()


def keep(index: LocalIndex, ids: bytes, first_block: int, blocks: int) -> StoredRun:
    hashes = hash_blocks(ids, BLOCK_SIZE)[first_block : first_block + blocks]
    index.service.index.add_stored(hashes, STORE, b"key")
    return StoredRun(first_block, blocks, STORE, b"key")


async def test_a_request_brings_along_what_it_is_to_load(
    keeper: ModelRouter, index: LocalIndex
) -> None:
    ids = prompt(*range(22))
    run = keep(index, ids, 2, 2)
    index.hold(R2, ids[: 3 * BLOCK_SIZE * 4])
    live = await keeper.begin(admitted(ids), NO_HINTS)
    assert live.request.transfer == TransferRequest((run,), Keeping.REUSE, 4)
    assert (live.routing.overlap_blocks, live.routing.forecast_blocks) == ((3,), (4,))
    assert (live.load_blocks, reason_of(live)) == (1, "kv_load")


@pytest.mark.parametrize(
    ("keeping", "hints", "kept"),
    [
        (Keeping.REUSE, NO_HINTS, Keeping.REUSE),
        (Keeping.CONTEXT, NO_HINTS, Keeping.CONTEXT),
        (Keeping.CONTEXT, ClientHints(no_store=True), Keeping.NOTHING),
    ],
)
async def test_what_is_kept_is_for_the_request_and_its_client_to_say(
    keeper: ModelRouter, keeping: Keeping, hints: ClientHints, kept: Keeping
) -> None:
    request = replace(admitted(prompt(*range(14))), keeping=keeping)
    transfer = (await keeper.begin(request, hints)).request.transfer
    assert transfer is not None
    assert transfer.keeping is kept


async def test_what_no_load_can_be_planned_for_has_no_transfer_and_no_such_forecast(
    keeper: ModelRouter, router: ModelRouter, index: LocalIndex
) -> None:
    """Several prompts, several choices, text that the engine renders; and an ingress without
    stores."""
    ids = prompt(*range(22))
    keep(index, ids, 0, 4)
    choices = replace(admitted(ids), blocks=hash_prompts([ids], BLOCK_SIZE, None, choices=2))
    rendered = admitted(ids)
    rendered = replace(rendered, request=replace(rendered.request, needs_render=True))
    asked = [(keeper, admitted(ids, ids)), (keeper, choices), (keeper, rendered)]
    for over, request in [*asked, (router, admitted(ids))]:
        live = await over.begin(request, NO_HINTS)
        assert (live.request.transfer, live.load_blocks) == (None, 0)
        assert live.routing.forecast_blocks[0] == 0


@pytest.mark.parametrize(
    ("value", "is_forbidden"),
    [("no-store", True), ("max-age=0, No-Store", True), ("no-cache", False), ("x-no-store", False)],
)
def test_a_client_can_forbid_that_its_kv_is_kept(value: str, is_forbidden: bool) -> None:
    assert forbids_storing({"cache-control": value}) is is_forbidden
    assert not forbids_storing({})


def members(*replicas: ReplicaId, block_size: int | None = BLOCK_SIZE) -> Sequence[Member]:
    return [Member(replica_id, block_size) for replica_id in replicas]


@pytest.fixture
async def index() -> LocalIndex:
    return LocalIndex(R1, R2)


@pytest.fixture
def tuning() -> Tuning:
    return Tuning()


@pytest.fixture
async def router(index: LocalIndex, tuning: Tuning) -> AsyncIterator[ModelRouter]:
    client = IndexClient(index, Random(2), parse_tuning({"index_deadline_ms": 1000}).link)
    yield ModelRouter(client, tuning, BLOCK_SIZE)
    await client.close()


async def until_booked(index: LocalIndex, replica_id: ReplicaId | None) -> None:
    """Waits until exactly this replica has a request booked, or none where it is None."""
    leases = {lease.slot: lease.replica_id for lease in index.service.leases.leases()}
    for _ in range(2000):
        counts = index.service.ledger.requests
        booked = [name for slot, name in leases.items() if counts[slot]]
        if booked == ([] if replica_id is None else [replica_id]):
            return
        await asyncio.sleep(0.005)
    raise AssertionError(f"booked on {booked}")


async def test_a_request_brings_along_where_to_and_what_is_expected_there(
    router: ModelRouter, index: LocalIndex
) -> None:
    ids = prompt(*range(14))
    index.hold(R2, ids)
    live = await router.begin(admitted(ids), NO_HINTS)
    routing = live.routing
    assert routing.ranked[0] == R2
    assert (routing.overlap_blocks, routing.forecast_blocks) == ((3,), (3,))
    assert (routing.decided_seq, routing.is_fallback) == (0, False)


async def test_an_end_releases_what_was_booked(router: ModelRouter, index: LocalIndex) -> None:
    live = await router.begin(admitted(prompt(*range(14))), NO_HINTS)
    await until_booked(index, live.route.replica_id)
    router.end(live)
    router.end(live)
    await until_booked(index, None)


async def test_a_completed_call_releases_although_its_client_still_reads(
    router: ModelRouter, index: LocalIndex
) -> None:
    live = await router.begin(admitted(prompt(*range(14))), NO_HINTS)
    router.on_completed(live.route.booking_id)
    await until_booked(index, None)


async def test_the_booking_follows_the_request_to_another_replica(
    router: ModelRouter, index: LocalIndex
) -> None:
    index.hold(R1, prompt(*range(14)))
    live = await router.begin(admitted(prompt(*range(14))), NO_HINTS)
    router.on_routed(live.route.booking_id, R2)
    assert live.replica_id == R2
    await until_booked(index, R2)


async def redirected(router: ModelRouter, live: LiveRequest, replica_id: ReplicaId) -> LiveRequest:
    """As Serve's router does before it sends a request elsewhere."""
    request = await router.redirect(live.route.booking_id, replica_id)
    assert request is live.request
    return live


def reason_of(live: LiveRequest) -> str:
    """Without what it says of the index, which has no replica's snapshot here."""
    return live.route.reason.replace(REFILLING, "")


async def test_a_request_that_goes_elsewhere_brings_along_what_is_right_there(
    keeper: ModelRouter, index: LocalIndex
) -> None:
    """The decision's own replica holds all of it; the one that Serve takes holds and loads some."""
    ids = prompt(*range(22))
    run = keep(index, ids, 2, 2)
    index.hold(R1, ids)
    index.hold(R2, ids[: 3 * BLOCK_SIZE * 4])
    live = await keeper.begin(admitted(ids), NO_HINTS)
    assert (live.routing.ranked, live.routing.forecast_blocks) == ((R1, R2), (5,))
    assert (live.request.transfer, live.load_blocks) == (TransferRequest((), Keeping.REUSE, 5), 0)
    decided = live.route
    await redirected(keeper, live, R2)
    assert live.request.transfer == TransferRequest((run,), Keeping.REUSE, 5)
    assert (live.routing.ranked, live.routing.decided_seq) == ((R2, R1), 0)
    assert (live.routing.overlap_blocks, live.routing.forecast_blocks) == ((3,), (4,))
    assert (live.load_blocks, reason_of(live)) == (1, "kv_load:rerouted")
    assert live.routing.booking_id == live.route.booking_id != decided.booking_id
    await until_booked(index, R2)
    keeper.on_routed(live.route.booking_id, R2)
    assert (live.replica_id, live.decided_replica_id) == (R2, R1)
    assert decision_headers(live) == {
        "X-Warmpath-Replica": alias(R2),
        "X-Warmpath-Forecast-Tokens": str(4 * BLOCK_SIZE),
        "X-Warmpath-Reason": live.route.reason,
    }
    keeper.end(live)
    await until_booked(index, None)


async def test_a_request_may_go_elsewhere_again_and_back(
    keeper: ModelRouter, index: LocalIndex
) -> None:
    ids = prompt(*range(22))
    index.hold(R1, ids)
    live = await keeper.begin(admitted(ids), NO_HINTS)
    await redirected(keeper, live, R2)
    assert (live.routing.forecast_blocks, reason_of(live)) == ((0,), "only_candidate:rerouted")
    await redirected(keeper, live, R1)
    assert (live.routing.ranked, live.routing.forecast_blocks) == ((R1, R2), (5,))
    assert reason_of(live) == "only_candidate"
    keeper.end(live)
    await until_booked(index, None)


async def test_a_replica_that_failed_a_request_is_decided_on_where_serve_takes_it_again(
    router: ModelRouter, index: LocalIndex
) -> None:
    ids = prompt(*range(14))
    index.hold(R2, ids)
    live = await router.begin(admitted(ids), NO_HINTS, [R2])
    await redirected(router, live, R2)
    assert live.routing.forecast_blocks == (3,)


async def test_where_the_choice_was_serve_s_its_choice_is_decided_on(tuning: Tuning) -> None:
    """As for the first request of all, which waits for a replica to start."""
    index, ids = LocalIndex(), prompt(*range(14))
    client = IndexClient(index, Random(2), parse_tuning({"index_deadline_ms": 1000}).link)
    router = ModelRouter(client, tuning, BLOCK_SIZE)
    live = await router.begin(admitted(ids), NO_HINTS)
    assert (live.routing.ranked, live.routing.is_fallback) == ((), True)
    index.service.register(encode(Registration(R1, 1)), index.now())
    index.hold(R1, ids)
    await redirected(router, live, R1)
    assert (live.routing.ranked, live.routing.is_fallback) == ((R1,), False)
    assert (live.routing.forecast_blocks, live.decided_replica_id) == ((3,), None)
    assert not live.route.reason.endswith("rerouted")
    await client.close()


async def test_without_an_index_a_request_that_goes_elsewhere_promises_nothing(
    keeper: ModelRouter, index: LocalIndex
) -> None:
    ids = prompt(*range(22))
    index.hold(R1, ids)
    live = await keeper.begin(admitted(ids), NO_HINTS)
    index.is_down = True
    await redirected(keeper, live, R2)
    assert live.routing.is_fallback
    assert (live.routing.ranked, live.routing.forecast_blocks) == ((R2, R1), (0,))
    assert live.route.reason == "fallback:unavailable:rerouted"
    index.is_down = False
    await until_booked(index, R2)


async def test_a_request_that_ends_while_it_is_decided_on_anew_leaves_nothing_booked(
    router: ModelRouter, index: LocalIndex
) -> None:
    live = await router.begin(admitted(prompt(*range(14))), NO_HINTS)
    index.open.clear()
    (other,) = live.route.ranked[1:]
    asked = asyncio.create_task(router.redirect(live.route.booking_id, other))
    await asyncio.sleep(0.01)
    router.end(live)
    index.open.set()
    assert await asked is None
    await until_booked(index, None)
    assert await router.redirect(live.route.booking_id, other) is None


async def test_serve_s_router_may_have_a_loop_of_its_own(
    router: ModelRouter, index: LocalIndex
) -> None:
    ids = prompt(*range(14))
    index.hold(R1, ids)
    live = await router.begin(admitted(ids), NO_HINTS)
    redirect = router.redirect(live.route.booking_id, R2)
    assert await asyncio.to_thread(asyncio.run, redirect) is live.request
    assert live.routing.ranked == (R2, R1)


async def test_a_replica_that_failed_a_request_is_not_chosen_for_it_again(
    router: ModelRouter, index: LocalIndex
) -> None:
    ids = prompt(*range(14))
    index.hold(R2, ids)
    live = await router.begin(admitted(ids), NO_HINTS, [R2])
    assert live.routing.ranked == (R1,)
    assert live.routing.forecast_blocks == (0,)


async def test_a_replica_that_serve_has_lost_is_chosen_no_more(
    router: ModelRouter, index: LocalIndex
) -> None:
    """Its lease in the index lives on for seconds."""
    ids = prompt(*range(14))
    index.hold(R2, ids)
    assert (await router.begin(admitted(ids), NO_HINTS)).routing.ranked[0] == R2
    router.on_members(members(R1))
    await asyncio.sleep(0)
    assert (await router.begin(admitted(ids), NO_HINTS)).routing.ranked == (R1,)


async def test_the_block_size_is_what_running_replicas_say(router: ModelRouter) -> None:
    router.on_members([*members(R1, R2, block_size=2), *members(ReplicaId("r3"), block_size=None)])
    assert router.block_size == 2
    live = await router.begin(admitted(prompt(*range(14)), block_size=BLOCK_SIZE), NO_HINTS)
    assert live.block_size == 2


async def test_without_an_index_the_request_goes_to_a_member(
    router: ModelRouter, index: LocalIndex
) -> None:
    router.on_members(members(R1))
    index.is_down = True
    await asyncio.sleep(0)
    live = await router.begin(admitted(prompt(*range(14))), NO_HINTS)
    assert live.routing.is_fallback
    assert live.routing.ranked == (R1,)
    assert live.route.reason == "fallback:unavailable"


async def test_prompts_of_a_list_have_a_forecast_each(
    router: ModelRouter, index: LocalIndex
) -> None:
    held, other = prompt(*range(14)), prompt(*range(50, 60))
    index.hold(R1, held)
    live = await router.begin(admitted(other, held, other), NO_HINTS)
    assert live.routing.ranked[0] == R1
    assert live.routing.forecast_blocks == (0, 3, 2)


async def test_a_rule_names_the_policy_and_a_change_counts_from_the_next_request(
    router: ModelRouter, tuning: Tuning
) -> None:
    async def begin(hints: ClientHints) -> LiveRequest:
        return await router.begin(admitted(prompt(*range(14))), hints)

    tuning.current = parse_tuning(
        {
            "policy": "least_loaded",
            "rules": [
                {"name": "s", "policy": "round_robin", "match": {"has_session_hint": True}},
            ],
        }
    )
    assert (await begin(NO_HINTS)).policy.policy.name == "least_loaded"
    with_session = await begin(ClientHints(session_hint="a"))
    assert with_session.policy.rule == "s"
    assert with_session.route.reason.startswith("round_robin")


async def test_the_switchboard_tells_late_listeners_who_is_there(router: ModelRouter) -> None:
    switchboard, key = Switchboard(), DeploymentKey("app", "llm")
    switchboard.report_members(key, members(R1, block_size=8))
    switchboard.connect(key, router)
    assert router.block_size == 8
    assert switchboard.listener(key) is router
    assert switchboard.listener(DeploymentKey("other", "llm")) is None


async def test_while_the_index_is_refilled_a_conversation_stays_where_its_last_turn_was(
    router: ModelRouter, index: LocalIndex
) -> None:
    router.on_members(members(R1, R2))
    ids = prompt(*range(14))
    for last in (R1, R2, R1, R2):
        live = await router.begin(admitted(ids), ClientHints(last_replica=last))
        assert live.routing.ranked[0] == live.route.replica_id == last
        assert (live.routing.is_fallback, live.routing.decided_seq) == (False, None)
        router.end(live)
        await until_booked(index, None)


async def test_without_the_index_a_conversation_stays_where_its_last_turn_was(
    router: ModelRouter, index: LocalIndex
) -> None:
    router.on_members(members(R1, R2))
    await asyncio.sleep(0)
    index.is_down = True
    ids = prompt(*range(14))
    chosen = (await router.begin(admitted(ids), NO_HINTS)).routing.ranked
    assert set(chosen) == {R1, R2}
    busy = [
        await router.begin(admitted(ids), ClientHints(last_replica=chosen[1])) for _ in range(9)
    ]
    assert {live.route.replica_id for live in busy} == {R1, R2}
    for live in busy:
        router.end(live)
    for last in chosen:
        live = await router.begin(admitted(ids), ClientHints(last_replica=last))
        assert live.routing.is_fallback
        assert live.routing.ranked[0] == live.route.replica_id == last
        assert set(live.routing.ranked) == {R1, R2}
        router.end(live)
