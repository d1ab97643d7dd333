"""A replica's own metrics: what is reported, from a simulated engine and its tracker."""

from dataclasses import dataclass, field

from replicas.cache_report import (
    CACHE_EVENTS,
    ENGINE_REQUESTS,
    INDEX_LAG,
    KV_USAGE,
    REPLICA_GAUGES,
    ReplicaGauge,
    report,
)
from replicas.engines.sim import SimEngine
from replicas.kv.tracker import CacheTracker
from router.configuration import SimConfig
from router.core.types import ReplicaId
from serve_app.observe.metrics import METRICS
from tests.contract.engine_client import fresh_prompt, make_request


@dataclass
class Samples:
    """The last value of each gauge and kind."""

    values: dict[tuple[str, str], float] = field(default_factory=dict)

    def observe(self, gauge: ReplicaGauge, value: float, tags: dict[str, str]) -> None:
        assert gauge in REPLICA_GAUGES and set(tags) == set(gauge.tags)
        self.values[gauge.name, tags.get("kind", "")] = value


async def test_a_round_tells_of_the_engine_and_of_what_became_of_its_events() -> None:
    engine = SimEngine(SimConfig(block_size=4, total_blocks=64, max_model_len=200), "m")
    tracker = CacheTracker(engine, await engine.start(), ReplicaId("r"))
    samples = Samples()
    answer = engine.generate(make_request(fresh_prompt(40), is_stream=True, max_tokens=100))
    await anext(answer)
    await tracker.catch_up()

    report("m", engine, tracker, samples)

    assert samples.values[ENGINE_REQUESTS.name, ""] == 1
    assert 10 / 64 <= samples.values[KV_USAGE.name, ""] < 1
    assert samples.values[INDEX_LAG.name, ""] == 0
    assert samples.values[CACHE_EVENTS.name, "applied"] > 0
    assert samples.values[CACHE_EVENTS.name, "blocks"] == 10
    assert {"gaps", "lost", "malformed", "repairs"} <= {kind for _, kind in samples.values}
    await answer.aclose()
    report("m", engine, tracker, samples)
    assert samples.values[KV_USAGE.name, ""] == 0
    await tracker.close()
    await engine.stop()


def test_names_differ_from_each_other_and_from_the_ingresss() -> None:
    names = [gauge.name for gauge in REPLICA_GAUGES] + [metric.name for metric in METRICS]
    assert len(set(names)) == len(names)
