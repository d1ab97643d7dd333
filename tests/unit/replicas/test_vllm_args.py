"""From a model's configuration to vLLM's arguments, without starting an engine."""

import os
from pathlib import Path
from typing import Any

import pytest

from replicas.engines.vllm.argument_check import OWNED, validate_engine_args
from replicas.engines.vllm.arguments import vllm_arguments
from replicas.engines.vllm.environment import prepare_environment
from router.configuration import ModelConfig
from router.core.errors import ConfigurationError


def model(**fields: Any) -> ModelConfig:
    return ModelConfig(name="m", **fields)


@pytest.mark.parametrize("key", sorted(OWNED))
def test_an_argument_that_we_own_is_refused_by_name(key: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"models\.m\.engine_args\.{key}: "):
        validate_engine_args(model(engine_args={key: None}))


def test_an_unknown_argument_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(ConfigurationError, match="max_num_seq.*did you mean max_num_seqs"):
        validate_engine_args(model(engine_args={"max_num_seq": 4}))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("max_model_len", "long"),
        ("enforce_eager", "yes"),
        ("dtype", "float7"),
        ("max_num_seqs", 1.5),
        ("compilation_config", {"no_such_key": 1}),
    ],
)
def test_a_wrong_value_is_refused_by_name(key: str, value: Any) -> None:
    with pytest.raises(ConfigurationError, match=rf"engine_args\.{key}"):
        validate_engine_args(model(engine_args={key: value}))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("max_model_len", 1024),
        ("gpu_memory_utilization", 0.5),
        ("seed", 3),
        ("override_generation_config", {"temperature": 0.5}),
        ("chat_template", "{{ messages }}"),
    ],
)
def test_a_right_value_reaches_vllm(key: str, value: Any) -> None:
    arguments = vllm_arguments(model(engine_args={key: value}))
    assert vars(arguments)[key] == value


def test_a_mapping_becomes_what_vllm_makes_of_it() -> None:
    ours = vllm_arguments(model(engine_args={"structured_outputs_config": {"backend": "guidance"}}))
    assert ours.structured_outputs_config.backend == "guidance"
    assert ours.structured_outputs_config.reasoning_parser == ""


def test_simulated_models_have_no_engine_arguments_to_check() -> None:
    validate_engine_args(model(engine="sim", engine_args={"anything": 1}))


def test_names_parsers_and_hashing_come_from_the_model() -> None:
    arguments = vllm_arguments(model(tool_call_parser="hermes", reasoning_parser="qwen3"))
    assert arguments.served_model_name == ["m"]
    assert arguments.tool_call_parser == "hermes"
    assert arguments.enable_auto_tool_choice
    assert arguments.reasoning_parser == "qwen3"
    assert arguments.enable_prefix_caching
    assert arguments.prefix_caching_hash_algo == "sha256_cbor"
    assert arguments.enable_prompt_tokens_details


def test_the_tiny_model_runs_small_and_exact() -> None:
    arguments = vllm_arguments(model())
    assert (Path(arguments.model) / "model.safetensors").exists()
    assert arguments.dtype == "float32"
    assert arguments.block_size == 32
    assert arguments.kv_cache_memory_bytes == 2**29


def test_users_override_defaults() -> None:
    arguments = vllm_arguments(model(kv_cache_gib=0.25, engine_args={"block_size": 16}))
    assert (arguments.block_size, arguments.kv_cache_memory_bytes) == (16, 2**28)


def test_serve_admits_more_than_the_engine_runs_at_once() -> None:
    assert vllm_arguments(model(max_ongoing_requests=40)).max_num_seqs == 20


def test_a_gpu_model_leaves_block_size_and_memory_to_vllm(tmp_path: Path) -> None:
    ours = vllm_arguments(model(source=str(tmp_path), gpus_per_replica=1))
    assert (ours.block_size, ours.kv_cache_memory_bytes, ours.dtype) == (None, None, "auto")


def test_all_ranks_run_as_processes_of_the_replica(tmp_path: Path) -> None:
    ours = vllm_arguments(model(source=str(tmp_path), gpus_per_replica=4, tensor_parallel_size=2))
    assert ours.distributed_executor_backend == "mp"
    assert (ours.tensor_parallel_size, ours.pipeline_parallel_size) == (2, 2)


def test_local_weights_are_never_looked_for_on_the_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    prepare_environment(model(source="someone/something"), model())
    assert "HF_HUB_OFFLINE" not in os.environ
    prepare_environment(model(source=str(tmp_path)), model())
    assert os.environ["HF_HUB_OFFLINE"] == "1"


def test_variables_that_the_user_has_set_win(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", "0-1")
    prepare_environment(model())
    assert os.environ["VLLM_CPU_OMP_THREADS_BIND"] == "0-1"
