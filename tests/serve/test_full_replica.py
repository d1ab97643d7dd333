"""A request whose replica is full. The application replaces any other that was deployed alike."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from ray import serve

from tests.serve.cached_app import CachedApp, completion, prompt, until
from tests.serve.sim_app import FAST, sim_model

pytestmark = pytest.mark.ray


@pytest.fixture(scope="module")
def narrow(serve_port: int) -> Iterator[CachedApp]:
    """Two replicas that take one request at a time."""
    timing = FAST | {"decode_ms_per_token": 5.0}
    args = {
        "models": [sim_model("m", timing, replicas=2, max_ongoing_requests=1)],
        "ingress": {"cpus_per_replica": 0},
    }
    app = CachedApp("narrow", f"http://127.0.0.1:{serve_port}/narrow", args)
    app.deploy()
    app.until_known(2)
    yield app
    serve.delete(app.name)


def test_a_request_that_finds_its_replica_full_is_decided_on_anew_for_the_one_that_takes_it(
    narrow: CachedApp,
) -> None:
    ids = prompt(310, 40)
    with httpx.Client(base_url=narrow.url, timeout=60) as client, ThreadPoolExecutor(1) as pool:
        first = completion(client, ids)
        narrow.until_applied()
        busy = pool.submit(completion, client, ids, max_tokens=400)
        until(lambda: narrow.stats()["bookings"] == 1)
        after = completion(client, ids)
        assert not busy.done()
        assert busy.result().replica == first.replica
    assert after.replica not in ("", first.replica)
    assert (after.forecast_tokens, after.cached_tokens) == (0, 0)
    assert after.reason == "only_candidate:rerouted"
