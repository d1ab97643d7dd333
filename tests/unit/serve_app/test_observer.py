"""Every request is counted and logged once, with nothing of its content."""

import json
import logging
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from msgspec import structs

from replicas.cache_report import REPLICA_GAUGES, STORE_GAUGES
from replicas.engines.protocol import EngineRequest, Route, Routing
from replicas.settlement import Cause, Settlement
from router.core.errors import InvalidRequest
from router.core.transfer import TransferRequest
from router.core.types import BookingId, ReplicaId, Tenant
from router.policies.registry import PolicySpec
from router.replay.formats import FORMATS, BadLines, read_rows
from router.rules import RuleOutcome
from router.serve.index_client import Route as Decided
from serve_app.admission import Admitted
from serve_app.allow_list import ApiRoute
from serve_app.observe.decision_headers import alias, decision_headers
from serve_app.observe.metrics import METRICS, Kind, Metric
from serve_app.observe.observer import ACCESS_LOGGER, Observer
from serve_app.observe.record import RequestRecord
from serve_app.prompt_blocks import hash_prompts
from serve_app.routing import LiveRequest
from serve_app.tuning import Tuning, parse_tuning

R1, R2 = ReplicaId("replica-one"), ReplicaId("replica-two")
SECRET = "a secret that nobody may read"


class Samples:
    """Meters that remember; they refuse what the table does not have."""

    def __init__(self) -> None:
        self.totals: Counter[tuple[str, ...]] = Counter()

    def add(self, metric: Metric, tags: Mapping[str, str], amount: float = 1) -> None:
        assert metric.kind is Kind.COUNTER
        self._keep(metric, tags, amount)

    def observe(self, metric: Metric, tags: Mapping[str, str], value: float) -> None:
        assert metric.kind is not Kind.COUNTER
        self._keep(metric, tags, 1)

    def _keep(self, metric: Metric, tags: Mapping[str, str], amount: float) -> None:
        assert metric in METRICS and set(tags) == set(metric.tags)
        if amount:
            self.totals[(metric.name, *(tags[tag] for tag in metric.tags))] += amount


def live(taken_by: ReplicaId = R1) -> LiveRequest:
    routing = Routing(BookingId(1), (R1, R2), (2, 2), (2, 3), 7, 0.0)
    request = EngineRequest(
        "id", Route.CHAT, SECRET.encode(), (bytes(40),), SECRET, False, routing=routing
    )
    decided = Decided(BookingId(1), (R1, R2), "kv_overlap")
    policy = RuleOutcome(PolicySpec(), "a-rule")
    return LiveRequest(request, decided, policy, 3, 2, None, taken_by)  # type: ignore[arg-type]


def record(taken_by: ReplicaId = R1) -> RequestRecord:
    attempt = live(taken_by)
    made = RequestRecord(ApiRoute.CHAT, "t")
    blocks = hash_prompts([bytes(40)], 3, SECRET, choices=2)
    made.admit(Admitted("m", Tenant("t"), attempt.request, blocks))
    made.attempt(attempt)
    made.begin()
    made.settlement = Settlement(3, (6, 6), (2, 3), (None, Cause.EVICTED))
    return made


@pytest.fixture
def samples() -> Samples:
    return Samples()


def test_a_request_is_counted_once_with_forecast_figure_and_cause(samples: Samples) -> None:
    observer, ended = Observer(samples, Tuning()), record()
    observer.finish(ended)
    observer.finish(ended)
    assert samples.totals == {
        ("warmpath_requests", "m", "/v1/chat/completions", "200"): 1,
        ("warmpath_decisions", "m", "kv_aware", "kv_overlap"): 1,
        ("warmpath_prompt_tokens", "m"): 20,
        ("warmpath_overlap_tokens", "m"): 12,
        ("warmpath_forecast_tokens", "m"): 15,
        ("warmpath_cached_tokens", "m"): 12,
        ("warmpath_forecast_differences", "m", "evicted"): 1,
    }


def test_what_was_to_be_loaded_is_counted_and_logged(
    samples: Samples, caplog: pytest.LogCaptureFixture
) -> None:
    ended = record()
    assert ended.live is not None
    ended.live.request = replace(ended.live.request, transfer=TransferRequest())
    ended.live.route = structs.replace(ended.live.route, load_blocks=4)
    with caplog.at_level(logging.INFO, ACCESS_LOGGER):
        Observer(samples, Tuning()).finish(ended)
    assert samples.totals[("warmpath_load_tokens", "m")] == 12
    assert json.loads(caplog.messages[0])["load_blocks"] == 4


def test_a_request_that_another_replica_took_is_counted(samples: Samples) -> None:
    Observer(samples, Tuning()).finish(record(taken_by=R2))
    assert samples.totals[("warmpath_rerouted", "m")] == 1


def test_a_refused_request_has_its_status_and_nothing_else(samples: Samples) -> None:
    refused = RequestRecord(ApiRoute.CHAT, "t")
    refused.fail(InvalidRequest("no"))
    Observer(samples, Tuning()).finish(refused)
    assert samples.totals == {("warmpath_requests", "", "/v1/chat/completions", "400"): 1}


def test_the_access_log_is_one_json_line_without_content_or_secret(
    samples: Samples, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, ACCESS_LOGGER):
        Observer(samples, Tuning()).finish(record())
    (line,) = caplog.messages
    logged = json.loads(line)
    assert SECRET not in line and "\n" not in line
    assert (logged["replica"], logged["reason"], logged["rule"]) == (R1, "kv_overlap", "a-rule")
    assert (logged["forecast_blocks"], logged["cached_tokens"]) == ([2, 3], [6, 6])
    assert logged["causes"] == {"evicted": 1}


def test_the_access_log_can_be_turned_off(
    samples: Samples, caplog: pytest.LogCaptureFixture
) -> None:
    tuning = Tuning()
    tuning.current = parse_tuning({"access_log": False})
    with caplog.at_level(logging.INFO, ACCESS_LOGGER):
        Observer(samples, tuning).finish(record())
    assert caplog.messages == []


def traced(
    samples: Samples, caplog: pytest.LogCaptureFixture, secret: bytes | None, ended: RequestRecord
) -> str:
    tuning = Tuning()
    tuning.current = parse_tuning({"access_log": "trace"})
    caplog.clear()
    with caplog.at_level(logging.INFO, ACCESS_LOGGER):
        Observer(samples, tuning, secret).finish(ended)
    (line,) = caplog.messages
    return line


def test_the_access_log_can_be_what_a_replay_reads_and_no_more(
    samples: Samples, caplog: pytest.LogCaptureFixture
) -> None:
    ended = record()
    ended.session_hint = "ann"
    line = traced(samples, caplog, b"secret", ended)
    bad = BadLines()
    (row,) = read_rows([f"INFO 2026-01-01 -- {line}"], FORMATS["access_log"], bad)
    assert bad.total == 0
    assert (row.prompt_tokens, len(row.block_ids), row.block_size) == (10, 3, 3)
    assert SECRET not in line and "ann" not in line and R1 not in line
    assert ended.admitted is not None
    assert set(row.block_ids).isdisjoint(ended.admitted.blocks.chains[0].tolist())


def test_prompts_match_under_one_secret_only(
    samples: Samples, caplog: pytest.LogCaptureFixture
) -> None:
    def hashes(secret: bytes | None) -> object:
        return json.loads(traced(samples, caplog, secret, record()))["prompts"][0]["hashes"]

    assert hashes(b"one") == hashes(b"one") != hashes(b"other")
    assert hashes(None) != hashes(None)


def test_headers_tell_an_alias_of_who_took_it_and_what_usage_will_say() -> None:
    headers = decision_headers(live(taken_by=R2))
    assert headers == {
        "X-Warmpath-Replica": alias(R2),
        "X-Warmpath-Forecast-Tokens": "6",
        "X-Warmpath-Reason": "kv_overlap",
    }
    assert R2 not in alias(R2)


def test_the_readme_lists_every_metric() -> None:
    text = (Path(__file__).parents[3] / "serve_app" / "README.md").read_text()
    _, _, table = text.partition("### Metrics")
    listed = set(re.findall(r"`(warmpath_\w+)`", table))
    ours = {each.name for each in (*METRICS, *REPLICA_GAUGES, *STORE_GAUGES)}
    assert listed == ours | {"warmpath_ingress_faults", "warmpath_kv_store"}


def test_the_readmes_example_has_real_hashes() -> None:
    text = (Path(__file__).parents[3] / "serve_app" / "README.md").read_text()
    ids = np.arange(1, 11, dtype="<u4").tobytes()
    for cache_salt in (None, "tenant-a"):
        for block_hash in hash_prompts([ids], 4, cache_salt).chains[0].tolist():
            assert f"`{block_hash:016x}`" in text


def test_metric_names_are_unique_and_say_whose_they_are() -> None:
    names = [metric.name for metric in METRICS]
    assert len(set(names)) == len(names)
    assert all(name.startswith("warmpath_") for name in names)
