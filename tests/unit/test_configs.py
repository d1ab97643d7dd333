"""Shipped configurations are right, and a wrong one dies with the name of its key."""

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml

from router.configuration import parse_config
from router.core.errors import ConfigurationError
from serve_app.config_file import check, check_closed, read_config_file
from serve_app.local import CONFIG
from serve_app.tuning import parse_tuning

CONFIGS = sorted((Path(__file__).parents[2] / "configs").glob("*.yaml"))

GOOD: dict[str, Any] = {
    "http_options": {"host": "127.0.0.1", "port": 8000},
    "applications": [
        {
            "name": "app",
            "import_path": "serve_app.app:build",
            "args": {"models": [{"name": "tiny", "engine": "sim", "replicas": 2}]},
        }
    ],
}


def write(folder: Path, config: object) -> Path:
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(config))
    return path


def with_model(**changes: object) -> dict[str, Any]:
    return {"models": [{"name": "tiny", **changes}]}


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_shipped_config_passes_every_check_of_a_start(path: Path) -> None:
    file = read_config_file(path)
    check(file, environ={})
    check_closed(file)
    assert file.is_local


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_shipped_config_opens_with_purpose_needs_and_run_line(path: Path) -> None:
    lines = path.read_text().splitlines()
    header = lines[: next(i for i, line in enumerate(lines) if not line.startswith("#"))]
    for word in ("# For: ", "# Needs: ", "# Run: "):
        assert sum(line.startswith(word) for line in header) == 1
    assert f"configs/{path.name}" in header[-1]


def test_every_way_to_run_has_a_config() -> None:
    assert {path.stem for path in CONFIGS} == {"gpu", "gpu-tp", "kv-store", "local", "sim"}


def test_of_all_only_one_keeps_kv_beyond_its_replica() -> None:
    apps = {path.stem: read_config_file(path).apps["warmpath"] for path in CONFIGS}
    assert [name for name, app in apps.items() if app.kv_store.enabled] == ["kv-store"]
    assert apps["kv-store"].models == apps["local"].models


def test_local_serves_two_real_engines_and_sim_eight_simulated() -> None:
    by_name = {path.stem: read_config_file(path).apps["warmpath"].models[0] for path in CONFIGS}
    assert (by_name["local"].engine, by_name["local"].replicas) == ("vllm", 2)
    assert (by_name["sim"].engine, by_name["sim"].replicas) == ("sim", 8)
    assert by_name["gpu"].gpus_per_replica == 1
    assert by_name["gpu"].autoscaling is not None
    assert by_name["gpu-tp"].tensor_parallel_size > 1


def test_built_local_application_is_that_of_the_local_config() -> None:
    shipped = next(path for path in CONFIGS if path.stem == "local")
    assert read_config_file(shipped).apps["warmpath"] == CONFIG


@pytest.mark.parametrize(
    ("args", "key", "hint"),
    [
        (with_model(replcas=2), "models[0].replcas", "did you mean 'replicas'?"),
        (with_model(zzzzzz=2), "models[0].zzzzzz", "unknown key"),
        (with_model(replicas="two"), "models[0].replicas", "integer"),
        (with_model(replicas=0), "models[0].replicas", "greater than or equal to 1"),
        (with_model(engine="tgi"), "models[0].engine", "'vllm' or 'sim'"),
        (with_model(kv_cache_gib=-1), "models[0].kv_cache_gib", "greater than 0"),
        (with_model(source=""), "models[0].source", "at least 1 character"),
        (with_model(replicas=2, autoscaling={}), "models[0]", "exclude each other"),
        (with_model(sim={}), "models[0]", "engine is not 'sim'"),
        (with_model(gpus_per_replica=3, tensor_parallel_size=2), "models[0]", "no multiple"),
        (
            with_model(autoscaling={"min_replicas": 3, "max_replicas": 2}),
            "models[0].autoscaling",
            "above max_replicas",
        ),
        (
            with_model(engine="sim", sim={"block_sise": 16}),
            "models[0].sim.block_sise",
            "did you mean 'block_size'?",
        ),
        ({"models": []}, "models", "at least 1 item"),
        ({}, "models", "required"),
        (5, "args", "dictionary"),
        ({"models": [{"name": "a"}, {"name": "a"}]}, "args", "'a' is given twice"),
        ({"models": [{"name": "../a"}]}, "models[0].name", "pattern"),
        (with_model() | {"ingress": {"max_body_bytes": 1}}, "ingress.max_body_bytes", "1024"),
        (with_model() | {"auth": {"key_file": "k"}}, "auth.key_file", "'keys_file'"),
        (with_model() | {"kv_store": {"memory_gib": 0}}, "kv_store.memory_gib", "greater than 0"),
        (with_model() | {"kv_store": {"disk_folder": "kv"}}, "kv_store", "not an absolute path"),
        (with_model() | {"kv_store": {"redis": "http://a"}}, "kv_store", "redis://"),
    ],
)
def test_wrong_argument_is_named(args: object, key: str, hint: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse_config(args)
    assert caught.value.key == key
    assert hint in caught.value.message


@pytest.mark.parametrize(
    ("engine_args", "key"),
    [
        ({"max_model_length": 10}, "max_model_length"),
        ({"max_num_seqs": "many"}, "max_num_seqs"),
        ({"model": "other"}, "model"),
    ],
)
def test_wrong_engine_argument_is_named(
    tmp_path: Path, engine_args: dict[str, object], key: str
) -> None:
    config = copy.deepcopy(GOOD)
    config["applications"][0]["args"] = with_model(engine_args=engine_args)
    with pytest.raises(ConfigurationError) as caught:
        check(read_config_file(write(tmp_path, config)), environ={})
    assert caught.value.key.endswith(f"engine_args.{key}")


def test_key_of_an_application_is_named_with_its_path_in_the_file(tmp_path: Path) -> None:
    config = copy.deepcopy(GOOD)
    config["applications"][0]["args"]["models"][0]["replicas"] = 0
    with pytest.raises(ConfigurationError) as caught:
        read_config_file(write(tmp_path, config))
    assert caught.value.key == "applications.app.args.models[0].replicas"


@pytest.mark.parametrize(
    ("user_config", "key"),
    [({"polcy": 1}, "polcy"), ({"parameters": {"queue_weight": -1}}, "parameters.queue_weight")],
)
def test_wrong_key_of_what_may_change_at_run_time_is_named(
    tmp_path: Path, user_config: dict[str, object], key: str
) -> None:
    config = copy.deepcopy(GOOD)
    config["applications"][0]["deployments"] = [{"name": "Ingress", "user_config": user_config}]
    with pytest.raises(ConfigurationError) as caught:
        check(read_config_file(write(tmp_path, config)), environ={})
    assert caught.value.key == f"applications.app.Ingress.user_config.{key}"


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"http_optoins": {}}, "http_optoins"),
        ({"http_options": {"port": "eight"}}, "http_options.port"),
        ({"http_options": {"hots": "127.0.0.1"}}, "http_options.hots"),
        ({"applications": [GOOD["applications"][0] | {"arg": {}}]}, "applications[0].arg"),
        ({"proxy_location": "Nowhere"}, "proxy_location"),
        ({"applications": []}, "applications"),
    ],
)
def test_serves_own_keys_are_named_too(tmp_path: Path, change: dict[str, object], key: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        read_config_file(write(tmp_path, GOOD | change))
    assert caught.value.key == key


@pytest.mark.parametrize("text", ["a: [", "\x00", "- 1"])
def test_file_that_is_no_configuration_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(text)
    with pytest.raises(ConfigurationError, match="config.yaml"):
        read_config_file(path)


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot be read"):
        read_config_file(tmp_path / "none.yaml")


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "localhost", "::1"])
def test_loopback_needs_no_keys(tmp_path: Path, host: str) -> None:
    file = read_config_file(write(tmp_path, GOOD | {"http_options": {"host": host}}))
    check_closed(file)


@pytest.mark.parametrize("options", [{"host": "0.0.0.0"}, {"host": "::"}, {"host": "10.0.0.1"}, {}])
def test_network_without_keys_is_refused(tmp_path: Path, options: dict[str, object]) -> None:
    """Serve listens on every interface where no host is given."""
    file = read_config_file(write(tmp_path, GOOD | {"http_options": options}))
    with pytest.raises(ConfigurationError) as caught:
        check_closed(file)
    assert caught.value.key == "http_options.host"


@pytest.mark.parametrize("auth", [{"keys_file": "keys"}, {"keys_env": "KEYS"}])
def test_network_with_keys_is_allowed(tmp_path: Path, auth: dict[str, str]) -> None:
    config = copy.deepcopy(GOOD) | {"http_options": {"host": "0.0.0.0"}}
    config["applications"][0]["args"]["auth"] = auth
    check_closed(read_config_file(write(tmp_path, config)))


def test_the_simulated_replicas_are_priced_as_they_are_timed() -> None:
    """What the default policy is told a prefill takes is what the simulator then takes."""
    (path,) = (path for path in CONFIGS if path.stem == "sim")
    (application,) = yaml.safe_load(path.read_text())["applications"]
    (ingress,) = application["deployments"]
    prices = parse_tuning(ingress["user_config"]).config.parameters
    sim = read_config_file(path).apps["warmpath"].models[0].sim
    assert sim is not None
    assert prices == {name: getattr(sim, name) for name in prices}
    assert {"prefill_ms_per_token", "prefill_base_ms"} <= prices.keys()
