"""`warmpath replay`: what it prints, and how it refuses."""

import json
from pathlib import Path

import pytest

from replicas.sim.latency import FittedLatency
from serve_app.cli import main

SMALL = ("--replicas", "2", "--blocks", "200", "--trace-block-size", "64")


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    rows = [
        {
            "timestamp": 400 * number,
            "input_length": 640,
            "output_length": 4,
            "hash_ids": [number % 2 * 100 + block for block in range(10)],
        }
        for number in range(20)
    ]
    path = tmp_path / "trace.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)) + "\nnonsense\n")
    return path


def test_prints_one_object_a_policy_and_nothing_else(
    trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["replay", str(trace), *SMALL, "--policies", "kv_aware", "round_robin", "--json"]
    assert main(command) == 0
    printed = capsys.readouterr()
    ours, turns = map(json.loads, printed.out.splitlines())
    assert (ours["policy"], turns["policy"]) == ("kv_aware", "round_robin")
    assert ours["completed_requests"] == 20
    assert ours["prefix_cache_reused_ratio"] >= turns["prefix_cache_reused_ratio"] > 0.5
    assert {
        "mean_ttft_ms",
        "p99_ttft_ms",
        "mean_tpot_ms",
        "mean_e2e_latency_ms",
        "p99_e2e_latency_ms",
    } <= ours.keys()
    assert f"{trace}:21: left out" in printed.err
    assert "1 lines left out" in printed.err


def test_prints_a_table_and_advice_with_what_to_paste(
    trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["replay", str(trace), *SMALL, "--policies", "kv_aware", "least_loaded"]) == 0
    printed = capsys.readouterr().out
    assert "of pooled" in printed
    assert "user_config:" in printed
    assert "orth it" in printed


def test_means_over_seeds_of_a_generated_workload(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["replay", "--generate", "unique", "--seeds", "1", "2", "--limit", "30"]
    assert main([*command, "--policies", "least_loaded", "--json"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line)["prefix_cache_reused_ratio"] == 0
    assert json.loads(line)["requests"] == 30


def test_passes_take_as_long_as_the_profile_says(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    profile = tmp_path / "profile.json"
    profile.write_bytes(FittedLatency(7.0, 0.0, 0.0, 1.5, 0.0, 0.0).to_json())
    command = ["replay", str(trace), *SMALL, "--policies", "kv_aware", "--json"]
    assert main([*command, "--timing", str(profile)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["mean_ttft_ms"] == pytest.approx(7.0)
    assert found["mean_tpot_ms"] == pytest.approx(1.5)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--policies", "kv_awre"], "kv_awre"),
        (["--policies", 'kv_aware{"x": 1}'], "parameters.x"),
        (["--fail", "never"], "fail"),
        (["--timing", "none.json"], "timing"),
        (["--scale", "2@3"], "scale"),
        (["--block-size", "48"], "trace_block_size"),
    ],
)
def test_what_cannot_be_is_refused_by_name(
    trace: Path, arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["replay", str(trace), *SMALL, *arguments]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["--replicas", "0"], ["--speed", "0"], ["--blocks", "x"]])
def test_numbers_that_make_no_sense_are_refused(
    trace: Path, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["replay", str(trace), *arguments])
    assert arguments[0] in capsys.readouterr().err


def test_a_file_that_is_not_there_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["replay", str(tmp_path / "none.jsonl")]) == 2
    assert "none.jsonl" in capsys.readouterr().err


def test_a_trace_without_requests_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "empty.jsonl"
    path.write_text('{"hash_ids": 3}\n')
    assert main(["replay", str(path)]) == 2
    assert "no request" in capsys.readouterr().err
