"""A replica's own metrics: what is reported, from a simulated engine and its tracker."""

from dataclasses import dataclass, field
from typing import cast

from replicas.cache_report import (
    CACHE_EVENTS,
    ENGINE_REQUESTS,
    INDEX_LAG,
    KV_BREAK_EVEN,
    KV_TRANSFERS,
    KV_USAGE,
    REPLICA_GAUGES,
    STORE_GAUGES,
    ReplicaGauge,
    report,
)
from replicas.engines.protocol import Engine, EngineWork
from replicas.engines.sim import SimEngine
from replicas.kv.tracker import CacheTracker
from router.configuration import SimConfig
from router.core.types import ReplicaId, StoreId
from serve_app.observe.metrics import METRICS
from tests.contract.engine_client import fresh_prompt, make_request
from tests.unit.replicas.kv.local_index import LocalIndex

GAUGES = (*REPLICA_GAUGES, *STORE_GAUGES)


@dataclass
class Samples:
    """The last value of each gauge and kind."""

    values: dict[tuple[str, str], float] = field(default_factory=dict)

    def observe(self, gauge: ReplicaGauge, value: float, tags: dict[str, str]) -> None:
        assert gauge in GAUGES and set(tags) == set(gauge.tags)
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


@dataclass
class StoringEngine:
    """Has loaded in three sizes, and computed."""

    engine: SimEngine
    loads: int = 0

    def work(self) -> EngineWork:
        self.loads += 1
        blocks, prefills = 10 * self.loads * self.loads, 10 * self.loads
        return EngineWork(
            prefills, 1000 * prefills, 500.0 * prefills, self.loads, blocks, 2.0 * blocks
        )

    def transfer_counts(self) -> dict[str, int]:
        return {"loads": self.loads, "load_missing": 2}

    def kv_usage(self) -> float:
        return 0.0

    def num_unfinished(self) -> int:
        return 0


async def test_a_round_tells_of_loads_and_where_they_break_even() -> None:
    inner = SimEngine(SimConfig(block_size=4, total_blocks=64, max_model_len=200), "m")
    engine = StoringEngine(inner)
    tracker = CacheTracker(cast(Engine, engine), await inner.start(), ReplicaId("r"))
    tracker.publish(LocalIndex(), StoreId("s"))
    samples = Samples()
    for _ in range(8):
        report("m", cast(Engine, engine), tracker, samples)
    assert samples.values[KV_TRANSFERS.name, "load_missing"] == 2
    kinds = {kind for name, kind in samples.values if name == KV_BREAK_EVEN.name}
    assert {"fixed_ms", "ms_per_block", "compute_ms_per_block"} <= kinds
    await tracker.close()
    await inner.stop()


def test_names_differ_from_each_other_and_from_the_ingresss() -> None:
    names = [gauge.name for gauge in GAUGES] + [metric.name for metric in METRICS]
    assert len(set(names)) == len(names)
