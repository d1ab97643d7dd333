"""Worker nodes that Ray's autoscaler adds and removes, while conversations go on."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from ray import serve

from replicas.kv.store.peers import store_names
from tests.serve.cached_app import BLOCK_SIZE, until
from tests.vllm.conversations import OBJECT_BLOCKS, OBJECT_TOKENS, Conversation, talk
from tests.vllm.real_app import LLM, RealApp, environment, serving
from tests.vllm.scaled_cluster import WORKER_CPUS, ScaledCluster, free_port, scaled_cluster

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(900)]

LEAVE_LIMIT_S = 120.0
"""A replica's drain, its store's 30 s without one, at most 20 s of hand-over, Ray's own time."""
TALKS = 4
TOKENS = 600


@pytest.fixture(scope="module")
def cluster_folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="wps-", dir="/tmp"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def cluster(cluster_folder: Path) -> Iterator[ScaledCluster]:
    with environment(cluster_folder), scaled_cluster(cluster_folder) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def app(cluster: ScaledCluster, cluster_folder: Path) -> RealApp:
    """Not yet deployed. The head node has room for the ingress, not for a replica."""
    return serving(
        cluster_folder,
        free_port(),
        {"cpus_per_replica": WORKER_CPUS},
        ingress={"cpus_per_replica": 0.25, "render_workers": 1},
        contexts={"journal": f"{cluster_folder}/contexts.sqlite", "lease_s": 2.0},
        kv_store={"enabled": True, "object_blocks": OBJECT_BLOCKS, "memory_gib": 0.1},
    )


def stores(app: RealApp) -> set[str]:
    """The nodes that have a store of the application."""
    return {name.split(":")[-2] for name in store_names(app.name)}


def talks_on_each_node(app: RealApp, http: httpx.Client) -> dict[str, Conversation]:
    """One conversation for each node, with all of it stored there.

    All begin before the first goes on: the policy puts each where the fewest began lately.
    """
    talks = [talk(app, http, number, TOKENS) for number in range(TALKS)]
    places = app.nodes(LLM)
    found = {places[each.turn(5, 6, 7)["replica"]]: each for each in talks}
    for conversation in found.values():
        conversation.until_stored()
    return found


def test_worker_nodes_leave_with_their_replicas_and_conversations_go_on(
    cluster: ScaledCluster, app: RealApp
) -> None:
    """None, two, one, none, one: what is stored outlives a node, and contexts outlive them all."""
    assert cluster.workers() == set()
    app.deploy(replicas=2)
    app.until_known(2)
    assert set(app.nodes(LLM).values()) == cluster.workers() == stores(app)
    with httpx.Client(base_url=app.url, timeout=120) as http:
        talks = talks_on_each_node(app, http)
        assert set(talks) == cluster.workers()

        app.deploy(replicas=1)
        until(lambda: len(cluster.workers()) == 1, LEAVE_LIMIT_S)
        assert cluster.workers() == stores(app)
        (stays,) = cluster.workers()
        (left,) = set(talks) - {stays}
        moved, kept = talks[left].turn(8, 9), talks[stays].turn(8, 9)
        assert moved["reason"] == "kv_load", str(moved)
        assert moved["load_blocks"] * BLOCK_SIZE >= TOKENS // OBJECT_TOKENS * OBJECT_TOKENS
        assert kept["load_blocks"] == 0, str(kept)
        for line in (moved, kept):
            assert line["cached_tokens"] == [line["forecast_blocks"][0] * BLOCK_SIZE]
            assert line["cached_tokens"] == [line["usage"]]

        serve.delete(app.name)
        until(lambda: not cluster.workers(), LEAVE_LIMIT_S)
        assert not stores(app)

        app.deploy(replicas=1)
        for talk_on in talks.values():
            assert talk_on.turn(10)["cached_tokens"] == [0]
            assert talk_on.caller.get(talk_on.name)["turns"] == 3
