"""A profile is found again from the passes of an engine that follows it."""

import json
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from replicas.engines.protocol import Engine
from replicas.engines.sim import SimEngine
from replicas.engines.sim_timing import read_profile
from replicas.sim.latency import FittedLatency
from replicas.sim.sequence import Pass
from router.configuration import SimConfig
from router.core.errors import ConfigurationError
from serve_app.bench.profiling import Grid, Observation, Profiler, fit, relative_errors

TRUTH = FittedLatency(3.0, 0.02, 4e-06, 5.0, 0.1, 0.0005)


def passes() -> Iterator[Pass]:
    for tokens in (64, 512, 2048):
        for context in (0, 1024, 4096):
            yield Pass(prefill_sequences=1, prefill_tokens=tokens, prefill_context_tokens=context)
        for sequences in (1, 4, 16):
            yield Pass(decode_sequences=sequences, decode_context_tokens=sequences * tokens)


def observed(model: FittedLatency) -> list[Observation]:
    return [Observation(work, 1000 * model.pass_s(work)) for work in passes()]


def test_exact_passes_give_the_profile_back() -> None:
    found = fit(observed(TRUTH))
    assert json.loads(found.to_json()) == pytest.approx(json.loads(TRUTH.to_json()))
    assert max(map(abs, relative_errors(found, observed(TRUTH)))) < 1e-9


def test_no_price_is_below_zero() -> None:
    """Passes that get cheaper with their context: noise, and no engine's nature."""
    cheaper = [
        Observation(one.work, one.ms * (1 - one.work.prefill_context_tokens / 20_000))
        for one in observed(TRUTH)
    ]
    assert min(json.loads(fit(cheaper).to_json()).values()) >= 0


def test_a_profile_survives_its_file(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    path.write_bytes(TRUTH.to_json())
    assert read_profile(path) == TRUTH


@pytest.mark.parametrize("content", [None, b"{}", b"[]", b"nonsense"])
def test_what_is_no_profile_is_refused_by_its_key(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "profile.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigurationError) as refusal:
        SimEngine(SimConfig(timing=str(path)), "m")
    assert refusal.value.key == "sim.timing"


async def test_measures_each_point_of_the_grid_on_an_engine() -> None:
    """Its times are the engine's, and never shorter."""
    config = SimConfig(
        block_size=4, max_model_len=400, prefill_ms_per_token=0.1, decode_ms_per_token=1
    )
    engine: Engine = SimEngine(config, "m")
    await engine.start()
    grid = Grid(lengths=(20, 100), contexts=(80,), batches=(2,), repeats=1)
    found = await Profiler(engine, 4, Random(0), 1000).measure(grid)
    await engine.stop()
    prefills, decodes = found[:4], found[4:]
    assert [one.work.prefill_context_tokens for one in prefills] == [0, 0, 80, 80]
    assert [one.work.decode_sequences for one in decodes] == [2, 2]
    assert prefills[0].ms >= 4
    assert prefills[1].ms >= 12
    assert prefills[2].ms >= 4
    assert all(one.ms >= 1 for one in decodes)
