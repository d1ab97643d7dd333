"""The block index's actor in a real cluster: names, lives, leases, succession."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import msgspec
import numpy as np
import pytest
import ray
from ray.actor import ActorHandle

from router.core.events import EventBatch, StoredRun
from router.core.types import BookingId, Incarnation, ReplicaId, Tenant, Tier
from router.serve.caller_bookings import Notes
from router.serve.flights import Booked, RoutingRequest, pack_flight
from router.serve.generations import (
    NAMESPACE,
    find_index,
    generations,
    named,
    newest,
    open_index,
    remove_index,
)
from router.serve.index_actor import BlockIndexActor
from router.serve.index_settings import IndexSettings
from router.serve.store_wire import StoredObject, StoreNews
from router.serve.wire import (
    Landing,
    Outcome,
    Receipt,
    Registration,
    Verdict,
    decode_landing,
    decode_receipt,
    encode,
)
from tests.serve import two_nodes

pytestmark = pytest.mark.ray

SETTINGS = IndexSettings(
    max_replicas=8,
    max_blocks=10_000,
    stale_after_s=0.8,
    forget_after_s=1.6,
    sweep_interval_s=0.05,
)
PATIENT = replace(SETTINGS, stale_after_s=30.0, forget_after_s=60.0)
"""For lives that end by other things than silence, however long an actor takes to start."""
CHAIN = np.random.default_rng(5).integers(1, 2**63, 64, dtype=np.uint64)


def until(condition: Callable[[], bool], limit_s: float = 10.0) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


@dataclass
class Index:
    """Talks to an actor the way replicas and ingresses do, one call at a time."""

    actor: ActorHandle
    ids: Iterator[int] = field(default_factory=lambda: iter(range(1, 10**9)))
    seqs: dict[str, int] = field(default_factory=dict)

    def register(self, replica: str, incarnation: int = 1) -> Receipt:
        self.seqs[replica] = 0
        message = encode(Registration(replica, incarnation))
        return decode_receipt(ray.get(self.actor.register.remote(message), timeout=10))

    def store(self, replica: str, blocks: int = 64, incarnation: int = 1) -> Receipt:
        """The leading blocks of the chain; 0 renews only."""
        run = (StoredRun(Tier.GPU, 0, CHAIN[:blocks]),) if blocks else ()
        seq = self.seqs[replica]
        self.seqs[replica] += 1
        batch = EventBatch(ReplicaId(replica), Incarnation(incarnation), seq, run)
        return decode_receipt(ray.get(self.actor.apply.remote(batch.pack()), timeout=10))

    def select(
        self,
        count: int = 1,
        *,
        lease_s: float = 60,
        candidates: tuple[ReplicaId, ...] | None = None,
        departed: tuple[str, ...] = (),
    ) -> Landing:
        hashes = CHAIN.tobytes()
        request = RoutingRequest(hashes, len(CHAIN) * 16, 16, Tenant("t"), candidates=candidates)
        booked = [(Booked(BookingId(next(self.ids)), request), 1e12) for _ in range(count)]
        notes = Notes(departed=dict.fromkeys(map(ReplicaId, departed)))
        flight = pack_flight(booked, notes, [], lease_s=lease_s, members_version=-1)
        return decode_landing(ray.get(self.actor.exchange.remote(flight), timeout=10))

    def stats(self) -> dict[str, object]:
        stats: dict[str, object] = msgspec.msgpack.decode(ray.get(self.actor.stats.remote()))
        return stats

    def pid(self) -> int:
        return int(ray.get(self.actor.__ray_call__.remote(lambda actor: os.getpid()), timeout=10))


@pytest.fixture
def application(ray_cluster: None, request: pytest.FixtureRequest) -> Iterator[str]:
    name = f"app-{request.node.name}"
    yield name
    remove_index(name, "model")


@pytest.fixture
def index(application: str) -> Index:
    return Index(open_index(application, "model", SETTINGS))


def test_a_replica_that_holds_the_prompt_is_chosen(index: Index) -> None:
    index.register("r1")
    index.register("r2")
    index.store("r1", 0)
    index.store("r2")

    (answer,) = index.select().answers

    assert answer.ranked[0] == "r2"
    assert answer.overlap_blocks == 64 and answer.reason == "kv_overlap"


def test_one_actor_however_often_it_is_opened(application: str) -> None:
    first = open_index(application, "model", SETTINGS)
    second = open_index(application, "model", SETTINGS)

    assert first._actor_id == second._actor_id
    assert generations(application, "model") == [1]


def test_applications_and_models_do_not_see_each_other(index: Index, application: str) -> None:
    others = [
        Index(open_index(application, "model/1", SETTINGS)),
        Index(open_index(f"{application}-2", "model", SETTINGS)),
    ]
    index.register("r1")
    index.store("r1")

    assert [other.select().answers[0].outcome for other in others] == [Outcome.NO_REPLICA] * 2
    assert generations(application, "model") == [1]
    remove_index(application, "model/1")
    remove_index(f"{application}-2", "model")


def test_a_silent_replica_is_no_candidate_and_then_forgotten(index: Index) -> None:
    """By the timer: nothing arrives meanwhile, and its late batch is refused."""
    index.register("r1")
    index.store("r1")
    index.register("r2")
    index.select(5)
    until(lambda: index.store("r2", 0).verdict == 0 and index.stats()["candidates"] == 1)
    assert index.select().answers[0].ranked == ("r2",)

    until(lambda: index.store("r2", 0).verdict == 0 and index.stats()["replicas"] == 1)

    assert index.store("r1").verdict == Verdict.REINCARNATE
    assert index.register("r1").verdict == Verdict.REINCARNATE
    assert index.register("r1", incarnation=2).verdict == Verdict.ACCEPTED


def test_a_replica_that_serve_has_dropped_leaves_long_before_its_lease_ends(
    application: str,
) -> None:
    """By word of any ingress; one that was dropped by mistake says so by itself."""
    index = Index(open_index(application, "model", replace(SETTINGS, forget_after_s=600.0)))
    for replica in ("r1", "r2"):
        index.register(replica)
        index.store(replica)

    assert index.select(departed=("r1", "r2")).answers[0].outcome == Outcome.NO_REPLICA
    index.store("r2", 0)
    assert index.select().answers[0].ranked == ("r2",)
    assert index.select().answers[0].overlap_blocks == 64

    until(lambda: index.store("r2", 0).verdict == 0 and index.stats()["replicas"] == 1)
    assert index.store("r1").verdict == Verdict.REINCARNATE


def test_abandoned_bookings_lapse_without_traffic(index: Index) -> None:
    index.register("r1")
    landings = [index.select(50, lease_s=0.3) for _ in range(4)]
    assert all(answer.outcome == Outcome.CHOSEN for row in landings for answer in row.answers)
    assert index.stats()["bookings"] == 200

    until(lambda: index.stats()["bookings"] == 0)

    assert index.stats()["ledger"]["swept"] == 200  # type: ignore[index]


def test_a_batch_too_large_for_one_step_is_refused(index: Index) -> None:
    index.register("r1")
    run = StoredRun(Tier.GPU, 0, np.arange(1, 2000, dtype=np.uint64))
    batch = EventBatch(ReplicaId("r1"), Incarnation(1), 0, (run,))

    receipt = decode_receipt(ray.get(index.actor.apply.remote(batch.pack())))

    assert receipt.verdict == Verdict.TOO_LARGE


def test_nonsense_is_an_error_for_its_sender_only(index: Index) -> None:
    index.register("r1")
    for call in (index.actor.exchange, index.actor.apply, index.actor.register):
        with pytest.raises(ray.exceptions.RayTaskError):
            ray.get(call.remote(b"nonsense"))

    assert index.select().answers[0].outcome == Outcome.CHOSEN


def test_a_killed_actor_comes_back_empty_as_another_life(index: Index) -> None:
    index.register("r1")
    index.store("r1")
    before = index.select().incarnation
    os.kill(index.pid(), signal.SIGKILL)

    def is_back() -> bool:
        try:
            return index.select().incarnation != before
        except ray.exceptions.RayActorError:
            return False

    until(is_back)

    assert index.select().answers[0].outcome == Outcome.NO_REPLICA
    assert index.store("r1").verdict == Verdict.REGISTER


def test_it_outlives_the_process_that_made_it(application: str) -> None:
    address = ray.get_runtime_context().gcs_address
    script = f"""
        import ray
        ray.init(address={address!r}, log_to_driver=False)
        from router.serve.generations import open_index
        from router.serve.index_settings import IndexSettings
        open_index({application!r}, "model", IndexSettings(max_replicas=8, max_blocks=10_000))
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=True, timeout=60)

    actor = find_index(application, "model")
    assert actor is not None
    index = Index(actor)
    index.register("r1")
    assert index.select().answers[0].outcome == Outcome.CHOSEN


def test_a_removed_application_starts_again_with_an_empty_index(
    index: Index, application: str
) -> None:
    index.register("r1")
    index.store("r1")

    assert remove_index(application, "model") == 1
    until(lambda: find_index(application, "model") is None)
    again = Index(open_index(application, "model", SETTINGS))

    assert again.stats()["replicas"] == 0
    assert again.select().answers[0].outcome == Outcome.NO_REPLICA


def test_other_settings_keep_what_is_known(index: Index, application: str) -> None:
    index.register("r1")
    index.register("r2")
    index.store("r2")
    first = index.select()

    open_index(application, "model", replace(SETTINGS, max_blocks=5_000))

    second = index.select()
    assert second.incarnation != first.incarnation
    assert second.answers[0].ranked[0] == "r2" and second.answers[0].overlap_blocks == 64
    assert index.stats()["bookings"] == 2
    assert generations(application, "model") == [1]


class OlderProtocol(BlockIndexActor):
    """The same index as code of another protocol sees it."""

    def hello(self, protocol: int) -> tuple[int, str]:
        return protocol - 1, ""


def start_older(application: str) -> Index:
    actor = ray.remote(OlderProtocol).options(
        name=f"block-index/{application}/model/1",
        namespace=NAMESPACE,
        lifetime="detached",
        num_cpus=0,
    )
    return Index(actor.remote(PATIENT.packed()))


def test_another_protocol_hands_over_without_losing_a_booking(application: str) -> None:
    old = start_older(application)
    old.register("r1")
    old.register("r2")
    old.store("r2")
    old.select(20)

    new = Index(open_index(application, "model", PATIENT), seqs=old.seqs)

    name = newest(application, "model")
    assert name is not None and name.generation == 2
    assert new.stats()["bookings"] == 20
    assert new.select(candidates=(ReplicaId("r2"),)).answers[0].overlap_blocks == 64
    assert new.select(candidates=(ReplicaId("r1"),)).answers[0].overlap_blocks == 0
    assert new.store("r2", 0).verdict == Verdict.ACCEPTED
    assert old.select().successor == name.actor_name
    assert old.store("r2", 0).successor == name.actor_name


def test_the_predecessor_is_stopped_after_a_while(application: str) -> None:
    start_older(application).register("r1")
    open_index(application, "model", SETTINGS)

    until(lambda: named(f"block-index/{application}/model/1") is None, limit_s=20)

    assert generations(application, "model") == [2]


def test_a_successor_of_a_dead_index_starts_empty(application: str) -> None:
    old = start_older(application)
    successor = ray.remote(BlockIndexActor).options(num_cpus=0).remote(SETTINGS.packed())
    ray.kill(old.actor)

    ray.get(successor.inherit.remote(old.actor, "next"), timeout=30)

    assert Index(successor).stats()["replicas"] == 0


def test_explains_a_decision_with_every_candidate(index: Index) -> None:
    index.register("r1")
    index.register("r2")
    index.select()

    explained = msgspec.msgpack.decode(ray.get(index.actor.explain.remote(1)))

    assert [view["replica_id"] for view in explained["candidates"]]
    assert len(explained["candidates"]) == 2
    assert msgspec.msgpack.decode(ray.get(index.actor.explain.remote(99))) is None


def test_names_the_prefixes_that_most_lookups_share(index: Index) -> None:
    index.register("r1")
    index.store("r1")
    index.select(count=8)

    (hottest,) = msgspec.msgpack.decode(ray.get(index.actor.hottest.remote(5)))

    assert hottest == {"block_hash": int(CHAIN[-1]), "blocks": 64, "lookups": 8}


def test_keeps_what_stores_hold_until_they_go(index: Index) -> None:
    news = StoreNews("s1", [StoredObject(b"key", CHAIN[:8].tobytes())], [], begins=True)

    receipt = decode_receipt(ray.get(index.actor.report_stored.remote(encode(news))))
    held = index.stats()["index"]
    ray.get(index.actor.forget_store.remote("s1"))

    assert receipt.verdict == Verdict.ACCEPTED
    assert isinstance(held, dict) and held["stored_blocks"] == 8
    assert index.stats()["index"] == {**held, "stored_blocks": 0}


def test_a_command_stops_the_index_that_an_application_left(application: str, index: Index) -> None:
    address = ray.get_runtime_context().gcs_address
    command = [sys.executable, "-m", "serve_app.cli", "index", "remove", application, "model"]
    done = subprocess.run(
        [*command, "--address", address], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("1 index actors stopped\n")
    until(lambda: find_index(application, "model") is None)


@pytest.mark.slow
def test_indexes_and_context_managers_live_on_the_node_that_stays() -> None:
    """An actor, also one that needs no CPU, keeps Ray's autoscaler from removing its node."""
    two_nodes.check("directories_stay")
