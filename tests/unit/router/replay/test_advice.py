"""The advice at the end of a replay, and that its YAML is a configuration."""

import yaml

from router.policies.registry import PolicySpec
from router.replay.advice import Advice, advice, yaml_lines
from router.replay.bounds import Bounds
from serve_app.tuning import parse_tuning
from tests.unit.router.replay.replay_figures import made

MUCH, LITTLE = Bounds(0.8, 0.85), Bounds(0.01, 0.01)


def advised(bounds: Bounds = MUCH, **ttft_ms: float) -> Advice:
    results = {name: made(value) for name, value in ttft_ms.items()}
    return advice(results, {name: PolicySpec(name) for name in results}, bounds)


def test_a_clear_gain_is_worth_it() -> None:
    given = advised(kv_aware=50.0, session_affinity=60.0, least_loaded=100.0)
    assert (given.policy, given.is_worth_it) == ("kv_aware", True)
    assert "mean TTFT -50%" in given.lines[0]
    assert "least_loaded" in given.lines[0]


def test_a_small_gain_is_not_and_the_simple_policy_is_named() -> None:
    given = advised(LITTLE, kv_aware=98.0, least_loaded=100.0, round_robin=120.0)
    assert (given.policy, given.is_worth_it) == ("least_loaded", False)
    assert any("1.0%" in line for line in given.lines)


def test_where_the_simple_policy_is_the_best_it_is_named() -> None:
    given = advised(kv_aware=101.0, least_loaded=100.0)
    assert (given.policy, given.is_worth_it) == ("least_loaded", False)


def test_caches_too_small_for_a_workload_are_named() -> None:
    given = advised(Bounds(0.1, 0.8), kv_aware=99.0, least_loaded=100.0)
    assert any("too small" in line for line in given.lines)


def test_a_low_latency_bought_with_goodput_does_not_win() -> None:
    results = {"kv_aware": made(50.0, goodput=10.0), "session_affinity": made(10.0, goodput=5.0)}
    given = advice(results, {name: PolicySpec(name) for name in results}, MUCH)
    assert given.policy == "kv_aware"


def test_whoever_is_ahead_at_the_last_token_is_named_too() -> None:
    results = {
        "kv_aware": made(50.0),
        "session_affinity": made(55.0, e2e_ms=2000.0),
        "least_loaded": made(100.0),
    }
    given = advice(results, {name: PolicySpec(name) for name in results}, MUCH)
    assert given.policy == "kv_aware"
    assert any("session_affinity has a mean E2E -33%" in line for line in given.lines)


def test_without_a_simple_policy_nothing_is_said_of_worth() -> None:
    given = advised(kv_aware=50.0)
    assert given.policy == "kv_aware"
    assert any("least_loaded" in line for line in given.lines)


def test_the_yaml_is_what_the_ingress_accepts() -> None:
    spec = PolicySpec("kv_aware", '{"queue_weight": 3.5, "max_load_ratio": 4.0}')
    deployments = yaml.safe_load("\n".join(yaml_lines(spec)))["deployments"]
    config = parse_tuning(deployments[0]["user_config"]).config
    assert deployments[0]["name"] == "Ingress"
    assert config.policy == "kv_aware"
    assert config.parameters == {"queue_weight": 3.5, "max_load_ratio": 4.0}
    bare = yaml.safe_load("\n".join(yaml_lines(PolicySpec("least_loaded"))))
    assert parse_tuning(bare["deployments"][0]["user_config"]).config.policy == "least_loaded"
