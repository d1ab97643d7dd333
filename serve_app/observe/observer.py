"""The end of every request: counted once, and written once into the access log.

A line has no prompt, no answer and no secret: sizes, times, decisions and names only. It goes to
Serve's own logger, so that Serve's logging configuration says where it ends up.
"""

import logging
import time
from collections import Counter

import msgspec

from replicas.settlement import Settlement
from serve_app.admission import Admitted
from serve_app.observe.metrics import (
    CACHED_TOKENS,
    DECISIONS,
    DIFFERENCES,
    FALLBACKS,
    FORECAST_TOKENS,
    LOAD_TOKENS,
    OVERLAP_TOKENS,
    PROMPT_TOKENS,
    REQUESTS,
    REROUTED,
    RETRIES,
    TTFT,
    UNSETTLED,
    Meters,
)
from serve_app.observe.record import OK, RequestRecord
from serve_app.observe.trace_line import Line, TraceLines
from serve_app.routing import LiveRequest
from serve_app.tuning import Tuning

ACCESS_LOGGER = "ray.serve.warmpath.access"


class Observer:
    """Owned by the loop that serves requests. `secret` keys what a traced line says of prompts."""

    def __init__(self, meters: Meters, tuning: Tuning, secret: bytes | None = None) -> None:
        self._meters = meters
        self._traces = TraceLines(secret)
        self._tuning = tuning
        self._log = logging.getLogger(ACCESS_LOGGER)

    def finish(self, record: RequestRecord) -> None:
        """Idempotent: the first end of a request is its end."""
        if record.is_finished:
            return
        record.is_finished = True
        ended_s = time.monotonic()
        self._count(record)
        line = self._line(record, ended_s)
        if line is not None:
            self._log.info("%s", msgspec.json.encode(line).decode())

    def _line(self, record: RequestRecord, ended_s: float) -> Line | None:
        mode = self._tuning.current.config.access_log
        if mode == "trace":
            return self._traces.line(record, ended_s)
        return access_line(record, ended_s) if mode else None

    def _count(self, record: RequestRecord) -> None:
        model = record.admitted.model if record.admitted is not None else ""
        add = self._meters.add
        tags = {"model": model}
        route = {"model": model, "route": record.route.value}
        add(REQUESTS, {**route, "status": str(record.status)})
        add(RETRIES, tags, max(record.attempts - 1, 0))
        if record.is_stream and record.first_item_s is not None:
            self._meters.observe(TTFT, route, record.first_item_s - record.started_s)
        if record.live is not None:
            self._count_decision(record.live, tags)
            self._count_settlement(record, record.live, tags)

    def _count_decision(self, live: LiveRequest, tags: dict[str, str]) -> None:
        policy = live.policy.policy.name
        add = self._meters.add
        add(DECISIONS, {**tags, "policy": policy, "reason": live.route.reason})
        if live.route.is_fallback:
            add(FALLBACKS, tags)
        if is_rerouted(live):
            add(REROUTED, tags)

    def _count_settlement(
        self, record: RequestRecord, live: LiveRequest, tags: dict[str, str]
    ) -> None:
        settlement, admitted = record.settlement, record.admitted
        if settlement is None or admitted is None:
            if record.status == OK:
                self._meters.add(UNSETTLED, tags)
            return
        add, block_size = self._meters.add, settlement.block_size
        add(PROMPT_TOKENS, tags, sum(admitted.blocks.prompt_tokens) * admitted.blocks.choices)
        add(OVERLAP_TOKENS, tags, sum(live.routing.overlap_blocks) * block_size)
        add(FORECAST_TOKENS, tags, sum(settlement.forecast_blocks) * block_size)
        add(LOAD_TOKENS, tags, live.load_blocks * block_size)
        add(CACHED_TOKENS, tags, sum(settlement.cached_tokens))
        for cause, times in _causes(settlement).items():
            add(DIFFERENCES, {**tags, "cause": cause}, times)


def is_rerouted(live: LiveRequest) -> bool:
    """Another replica took the request than was decided, if any was."""
    return None not in (live.replica_id, live.decided_replica_id) and (
        live.replica_id != live.decided_replica_id
    )


def access_line(record: RequestRecord, ended_s: float) -> Line:
    """Times in milliseconds since the request's arrival."""
    line: Line = {
        "event": "request",
        "route": record.route.value,
        "tenant": record.tenant,
        "status": record.status,
        "duration_ms": _ms(record, ended_s),
    }
    if record.http_request_id is not None:
        line["http_request_id"] = record.http_request_id
    if record.admitted is not None:
        line |= _admission(record, record.admitted)
    if record.live is not None:
        line |= _decision(record, record.live)
    if record.settlement is not None:
        line |= _settlement(record.settlement)
    return line


def _admission(record: RequestRecord, admitted: Admitted) -> Line:
    return {
        "request_id": admitted.request.request_id,
        "model": admitted.model,
        "is_stream": admitted.request.is_stream,
        "prompts": len(admitted.blocks.prompt_tokens),
        "choices": admitted.blocks.choices,
        "prompt_tokens": sum(admitted.blocks.prompt_tokens),
        "rendered_ms": _ms(record, record.admitted_s),
    }


def _decision(record: RequestRecord, live: LiveRequest) -> Line:
    return {
        "policy": live.policy.policy.name,
        "rule": live.policy.rule,
        "reason": live.route.reason,
        "replica": live.replica_id,
        "decided_replica": live.decided_replica_id,
        "overlap_blocks": list(live.routing.overlap_blocks),
        "forecast_blocks": list(live.routing.forecast_blocks),
        "load_blocks": live.load_blocks,
        "attempts": record.attempts,
        "first_item_ms": _ms(record, record.first_item_s),
    }


def _settlement(settlement: Settlement) -> Line:
    return {
        "block_size": settlement.block_size,
        "cached_tokens": list(settlement.cached_tokens),
        "causes": dict(_causes(settlement)),
    }


def _causes(settlement: Settlement) -> Counter[str]:
    return Counter(cause.value for cause in settlement.causes if cause is not None)


def _ms(record: RequestRecord, at_s: float | None) -> float | None:
    return None if at_s is None else round((at_s - record.started_s) * 1000, 3)
