"""vLLM's metrics must not hold up the tokens that they count."""

import asyncio

import pytest

pytestmark = pytest.mark.vllm


async def test_a_step_is_recorded_once_its_outputs_have_gone_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from vllm.v1.metrics.ray_wrappers import RayPrometheusStatLogger

    from replicas.engines.vllm.late_metrics import LateRayMetrics

    order: list[object] = []
    monkeypatch.setattr(
        RayPrometheusStatLogger, "record", lambda _, *stats, **named: order.append((stats, named))
    )
    logger = LateRayMetrics.__new__(LateRayMetrics)
    asyncio.get_running_loop().call_soon(order.append, "output")
    logger.record("scheduler", engine_idx=0)
    assert order == []
    await asyncio.sleep(0)
    assert order == ["output", (("scheduler",), {"engine_idx": 0})]
