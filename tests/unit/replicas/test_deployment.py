"""What Serve is told about a model's replicas."""

from typing import Any

import pytest

from replicas.deployment import deployment_options
from replicas.serve_flags import SERVE_FLAGS, serve_flags
from router.configuration import ModelConfig


def options(**fields: Any) -> dict[str, Any]:
    return deployment_options(ModelConfig(name="org/model", **fields))


def test_the_name_is_usable_in_paths() -> None:
    assert options()["name"] == "llm-org--model"


def test_one_replica_unless_told_otherwise() -> None:
    assert options()["num_replicas"] == 1
    assert options(replicas=3)["num_replicas"] == 3


def test_autoscaling_replaces_the_fixed_number() -> None:
    scaled = options(autoscaling={"min_replicas": 0, "max_replicas": 4})
    assert "num_replicas" not in scaled
    assert scaled["autoscaling_config"] == {
        "min_replicas": 0,
        "max_replicas": 4,
        "target_ongoing_requests": 16,
        "upscale_delay_s": 10,
        "downscale_delay_s": 300,
    }


def test_a_replica_asks_for_its_own_resources() -> None:
    asked = options(cpus_per_replica=2, gpus_per_replica=1)
    assert asked["ray_actor_options"]["num_cpus"] == 2
    assert asked["ray_actor_options"]["num_gpus"] == 1
    assert "placement_group_bundles" not in asked


def test_all_gpus_of_a_replica_are_one_bundle_on_one_node() -> None:
    asked = options(cpus_per_replica=2, gpus_per_replica=4, tensor_parallel_size=4)
    assert asked["placement_group_bundles"] == [{"CPU": 2, "GPU": 4}]
    assert asked["placement_group_strategy"] == "STRICT_PACK"
    assert asked["ray_actor_options"]["num_gpus"] == 4


@pytest.mark.parametrize("timeout_s", [1, 30, 300])
def test_serve_waits_longer_than_the_engine_says_of_itself(timeout_s: float) -> None:
    assert options(health_check_timeout_s=timeout_s)["health_check_timeout_s"] > timeout_s


def test_serve_admits_what_the_model_allows() -> None:
    assert options(max_ongoing_requests=7)["max_ongoing_requests"] == 7


def test_serve_s_flags_reach_the_replica_s_process() -> None:
    environment = options()["ray_actor_options"]["runtime_env"]["env_vars"]
    assert environment["RAY_SERVE_USE_GRPC_BY_DEFAULT"] == "1"
    assert environment["RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD"] == "0"


def test_a_flag_that_the_user_has_set_stays() -> None:
    own = {"RAY_SERVE_USE_GRPC_BY_DEFAULT": "0"}
    assert serve_flags(own).keys() == SERVE_FLAGS.keys() - own.keys()
