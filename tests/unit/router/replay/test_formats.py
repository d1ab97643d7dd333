"""Trace files: what is read, and what is said of lines that cannot be."""

import base64
import json
import struct

import pytest

from router.core.errors import ConfigurationError
from router.replay.formats import FORMATS, MAX_KEPT, BadLines, detect, read_rows
from router.replay.trace import TraceRow

GOOD = {"timestamp": 1500, "input_length": 700, "output_length": 5, "hash_ids": [1, 2]}


def read(name: str, *lines: str) -> tuple[list[TraceRow], BadLines]:
    bad = BadLines()
    return read_rows(lines, FORMATS[name], bad), bad


def logged(**changes: object) -> str:
    packed = base64.b64encode(struct.pack("<2Q", 11, 12)).decode()
    line = {
        "event": "request_trace",
        "at_s": 1.7e9,
        "model": "m",
        "session": None,
        "status": 200,
        "block_size": 16,
        "output_tokens": 3,
        "prompts": [{"tokens": 40, "hashes": packed}],
    }
    return json.dumps(line | changes)


def test_rows_come_in_order_of_time_from_zero_on() -> None:
    rows, bad = read(
        "mooncake", json.dumps(GOOD), json.dumps(GOOD | {"timestamp": 500, "session_id": "s"})
    )
    assert [(row.at_s, row.session) for row in rows] == [(0.0, "s"), (1.0, None)]
    assert (rows[0].prompt_tokens, rows[0].output_tokens, rows[0].block_ids) == (700, 5, [1, 2])
    assert bad.total == 0


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", ""),
        ("[1]", "not a JSON object"),
        (json.dumps(GOOD | {"hash_ids": "x"}), "hash_ids"),
        (json.dumps(GOOD | {"hash_ids": [1, True]}), "hash_ids"),
        (json.dumps(GOOD | {"input_length": 0}), "input_length"),
        (json.dumps(GOOD | {"output_length": 1.5}), "output_length"),
        (json.dumps(GOOD | {"timestamp": None}), "timestamp"),
        (json.dumps(GOOD | {"timestamp": -1}), "timestamp"),
        (json.dumps(GOOD).replace("1500", "NaN"), "timestamp"),
    ],
)
def test_a_bad_line_is_left_out_and_reported_with_its_number(line: str, reason: str) -> None:
    rows, bad = read("mooncake", json.dumps(GOOD), "", line, json.dumps(GOOD))
    assert len(rows) == 2
    assert bad.total == 1
    assert bad.first[0][0] == 3
    assert reason in bad.first[0][1]


def test_all_bad_lines_are_counted_and_the_first_are_kept() -> None:
    _, bad = read("mooncake", *["?"] * 100)
    assert (bad.total, len(bad.first)) == (100, MAX_KEPT)


@pytest.mark.parametrize(
    "wrap",
    [
        lambda line: line,
        lambda line: f"INFO 2026-01-01 12:00:00,000 warmpath_Ingress abc -- {line}",
        lambda line: json.dumps({"levelname": "INFO", "message": line}),
    ],
    ids=["bare", "as text", "as json"],
)
def test_the_access_log_is_read_however_it_was_written(wrap) -> None:  # type: ignore[no-untyped-def]
    rows, bad = read("access_log", "INFO something else", wrap(logged()), wrap(logged(status=503)))
    assert bad.total == 0
    assert [(row.prompt_tokens, row.block_ids, row.label) for row in rows] == [(40, [11, 12], "m")]


def test_each_prompt_of_a_logged_request_is_a_row() -> None:
    prompts = [{"tokens": 5, "hashes": ""}, {"tokens": 7, "hashes": ""}]
    rows, _ = read("access_log", logged(prompts=prompts))
    assert [row.prompt_tokens for row in rows] == [5, 7]


def test_a_damaged_log_line_is_reported() -> None:
    damaged = [{"tokens": 5, "hashes": "***"}]
    _, bad = read("access_log", logged(prompts=damaged), logged(prompts="x"), logged(prompts=[1]))
    assert bad.total == 3


def test_azure_has_times_and_lengths() -> None:
    rows, bad = read(
        "azure",
        "TIMESTAMP,ContextTokens,GeneratedTokens",
        "2023-11-16 18:17:03.9799600,4808,10",
        "2023-11-16 18:17:04.9799600,110,27",
        "2023-11-16 18:17:05.0,0,27",
    )
    assert [(round(row.at_s, 3), row.prompt_tokens) for row in rows] == [(0.0, 4808), (1.0, 110)]
    assert bad.total == 1


@pytest.mark.parametrize(
    ("line", "name"),
    [
        (json.dumps(GOOD), "mooncake"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens", "azure"),
        (logged(), "access_log"),
    ],
)
def test_the_first_line_tells_the_format(line: str, name: str) -> None:
    assert detect(line) == name


def test_an_unknown_format_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="mooncake"):
        detect("hello")
