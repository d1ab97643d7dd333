"""Trace files as rows: Mooncake's JSONL, Warmpath's own access log, Azure's CSV. Pure.

A line that cannot be used is reported with its number and left out.
"""

import datetime as dt
import json
from base64 import b64decode
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import numpy as np

from router.core.errors import ConfigurationError
from router.replay.trace import TraceRow

MAX_KEPT = 20
"""Bad lines whose reason is kept; all are counted."""

Json = dict[str, object]


@dataclass(slots=True)
class BadLines:
    """`first` are (number from 1, reason)."""

    total: int = 0
    first: list[tuple[int, str]] = field(default_factory=list)

    def add(self, number: int, reason: str) -> None:
        self.total += 1
        if len(self.first) < MAX_KEPT:
            self.first.append((number, reason))


@dataclass(frozen=True, slots=True)
class TraceFormat:
    """`parse` makes rows of a line, none of one that is no request; raises `ValueError`.

    `block_size`: tokens in a trace block, where rows do not say so themselves.
    """

    parse: Callable[[str], list[TraceRow]]
    block_size: int


def read_rows(lines: Iterable[str], form: TraceFormat, bad: BadLines) -> list[TraceRow]:
    """All rows, in order of time from 0 on."""
    rows = sorted(_parsed(lines, form, bad), key=lambda row: row.at_s)
    start_s = rows[0].at_s if rows else 0.0
    return [replace(row, at_s=row.at_s - start_s) for row in rows]


def detect(first_line: str) -> str:
    """The name of the format of a file that begins so. Raises `ConfigurationError`."""
    if first_line.upper().startswith("TIMESTAMP,"):
        return "azure"
    if '"hash_ids"' in first_line:
        return "mooncake"
    if "event" in first_line:
        return "access_log"
    raise ConfigurationError("format", f"the first line is of none of {', '.join(FORMATS)}")


def _parsed(lines: Iterable[str], form: TraceFormat, bad: BadLines) -> Iterator[TraceRow]:
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            yield from form.parse(line)
        except (ValueError, TypeError, OverflowError) as error:
            bad.add(number, str(error)[:120])


def _mooncake(line: str) -> list[TraceRow]:
    row = _object(line)
    ids = row.get("hash_ids")
    if not isinstance(ids, list) or not all(type(block) is int for block in ids):
        raise ValueError("hash_ids is no list of integers")
    return [
        TraceRow(
            _number(row, "timestamp") / 1000,
            _count(row, "input_length"),
            _count(row, "output_length"),
            ids,
            _text(row, "session_id"),
            _text(row, "label") or "",
        )
    ]


def _access_log(line: str) -> list[TraceRow]:
    """Whatever stands before the JSON object is the logger's, as are lines without one."""
    start = line.find("{")
    row = _object(line[start:]) if start >= 0 else {}
    message = row.get("message")
    if isinstance(message, str) and message.startswith("{"):
        row = _object(message)
    if row.get("event") != "request_trace" or row.get("status") != 200:
        return []
    prompts = row.get("prompts")
    if not isinstance(prompts, list):
        raise ValueError("prompts is no list")
    return [_logged(row, prompt) for prompt in prompts]


def _logged(row: Json, prompt: object) -> TraceRow:
    if not isinstance(prompt, dict):
        raise ValueError("a prompt is no object")
    hashes = np.frombuffer(b64decode(_text(prompt, "hashes") or "", validate=True), "<u8")
    return TraceRow(
        _number(row, "at_s"),
        _count(prompt, "tokens"),
        _count(row, "output_tokens"),
        hashes.tolist(),
        _text(row, "session"),
        _text(row, "model") or "",
        _count(row, "block_size"),
    )


def _azure(line: str) -> list[TraceRow]:
    """Times and lengths alone: nothing of it is shared."""
    if line.upper().startswith("TIMESTAMP,"):
        return []
    at, prompt, output = line.strip().split(",")
    if min(int(prompt), int(output)) < 1:
        raise ValueError("a length is below 1")
    moment = dt.datetime.fromisoformat(at[:26])
    return [TraceRow(moment.timestamp(), int(prompt), int(output))]


FORMATS: Mapping[str, TraceFormat] = MappingProxyType(
    {
        "mooncake": TraceFormat(_mooncake, 512),
        "access_log": TraceFormat(_access_log, 16),
        "azure": TraceFormat(_azure, 64),
    }
)


def _object(text: str) -> Json:
    row = json.loads(text)
    if not isinstance(row, dict):
        raise ValueError("not a JSON object")
    return row


def _number(row: Json, key: str) -> float:
    value = row.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e15:
        raise ValueError(f"{key} is no time")
    return float(value)


def _count(row: Json, key: str) -> int:
    value = row.get(key)
    if type(value) is not int or not 1 <= value < 2**40:
        raise ValueError(f"{key} is no whole number from 1 on")
    return value


def _text(row: Json, key: str) -> str | None:
    value = row.get(key)
    if value is not None and not isinstance(value, str):
        raise ValueError(f"{key} is no text")
    return value
