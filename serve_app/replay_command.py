"""`warmpath replay`: reads a workload, replays it by each policy, says what came out."""

import argparse
import json
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random

from replicas.engines.sim_timing import latency_of, read_profile
from replicas.sim.latency import LatencyModel
from router.configuration import SimConfig
from router.core.errors import ConfigurationError
from router.policies.registry import POLICIES, make_policy
from router.replay.advice import advice, yaml_lines
from router.replay.bounds import bounds, mean_bounds
from router.replay.figures import Figures, Limits, figures, mean_of
from router.replay.formats import FORMATS, BadLines, detect, read_rows
from router.replay.generated import BLOCK_TOKENS, WORKLOADS
from router.replay.outcomes import Outcomes
from router.replay.plan import (
    FleetPlan,
    ReplayPlan,
    parse_failure,
    parse_policy,
    parse_scaling,
)
from router.replay.report import Results, check_report_extra, html_report
from router.replay.simulation import Simulation
from router.replay.summary import summary
from router.replay.table import label_table, policy_table
from router.replay.trace import Chainer, TraceRequest, TraceRow

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Workload:
    """`runs` has the requests of each seed; of a trace there is one run."""

    name: str
    runs: tuple[list[TraceRequest], ...]


@dataclass(frozen=True, slots=True)
class PolicyRuns:
    """Means over the runs, and what became of each request in the first."""

    figures: Figures
    first: Outcomes


def add_arguments(parser: argparse.ArgumentParser) -> None:
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("trace", nargs="?", type=Path, help="a trace file")
    source.add_argument("--generate", choices=WORKLOADS, help="make a workload instead")
    parser.add_argument("--format", choices=["auto", *FORMATS], default="auto")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0], help="of what is generated")
    parser.add_argument("--rate", type=_positive, default=4.0, help="of what is generated")
    parser.add_argument("--limit", type=_count, help="take so many requests of the trace")
    parser.add_argument(
        "--speed", type=_positive, default=1.0, help="2: requests come twice as fast"
    )
    parser.add_argument("--trace-block-size", type=_count, help="tokens in a block of the trace")
    parser.add_argument("--replicas", type=_count, default=8)
    parser.add_argument("--blocks", type=_count, default=2048, help="KV blocks of each replica")
    parser.add_argument("--block-size", type=_count, default=64, help="tokens in a block")
    parser.add_argument(
        "--timing", default="dynamo", help="of passes: dynamo, linear, or a profile's path"
    )
    parser.add_argument(
        "--policies", nargs="+", default=list(POLICIES), help='names, or name{"parameter": value}'
    )
    parser.add_argument("--ingresses", type=_count, default=1)
    parser.add_argument("--separate", action="store_true", help="ingresses that share no index")
    parser.add_argument("--event-delay", type=float, default=0.0, help="seconds")
    parser.add_argument("--fail", nargs="+", default=[], help="3@60+20, clear@100")
    parser.add_argument("--scale", nargs="+", default=[], help="+2@100, -1@200")
    parser.add_argument("--ttft-limit-ms", type=_positive, default=1000.0, help="for goodput")
    parser.add_argument("--tpot-limit-ms", type=_positive, default=100.0, help="for goodput")
    parser.add_argument("--json", action="store_true", help="one object a policy, nothing else")
    parser.add_argument("--report", type=Path, help="write a page with plots there")


def run(options: argparse.Namespace) -> int:
    """Raises `ConfigurationError` for what cannot be replayed."""
    if options.report:
        check_report_extra()
    say: Say = partial(print, file=sys.stderr if options.json else sys.stdout, flush=True)
    plans = {text: _plan(options, text) for text in options.policies}
    for plan in plans.values():
        make_policy(plan.policy)
    workload = _workload(options, say)
    limits = Limits(options.ttft_limit_ms, options.tpot_limit_ms)
    runs = {}
    for name, plan in plans.items():
        runs[name] = _replayed(name, plan, workload, limits, say)
        if options.json:
            print(json.dumps({"policy": name, **summary(runs[name].figures)}), flush=True)
    if options.report or not options.json:
        _conclude(options, workload, plans, runs, say)
    return 0


def _conclude(
    options: argparse.Namespace,
    workload: Workload,
    plans: Mapping[str, ReplayPlan],
    runs: Mapping[str, PolicyRuns],
    say: Say,
) -> None:
    pooled_blocks = options.replicas * options.blocks
    best = mean_bounds([bounds(run, pooled_blocks, options.block_size) for run in workload.runs])
    results = {name: each.figures for name, each in runs.items()}
    specs = {name: plan.policy for name, plan in plans.items()}
    given = advice(results, specs, best)
    yaml = yaml_lines(specs[given.policy])
    for line in ("", *policy_table(results, best), "", *label_table(results)):
        say(line)
    for line in ("", *given.lines, "", *yaml):
        say(line)
    if options.report:
        outcomes = {name: each.first for name, each in runs.items()}
        page = html_report(
            Results(workload.name, _settings(options), results, outcomes, best, given, yaml)
        )
        options.report.write_text(page, "utf-8")
        say(f"\n{options.report}: written")


def _settings(options: argparse.Namespace) -> tuple[tuple[str, str], ...]:
    settings = (
        ("replicas", str(options.replicas)),
        ("blocks each", f"{options.blocks:,}"),
        ("tokens in a block", str(options.block_size)),
        ("timing", options.timing),
        ("speed", f"{options.speed:g}"),
        ("ingresses", f"{options.ingresses}{' separate' if options.separate else ''}"),
        ("event delay", f"{options.event_delay:g} s"),
        ("failures", " ".join(options.fail)),
        ("scaling", " ".join(options.scale)),
        ("goodput within", f"{options.ttft_limit_ms:g} / {options.tpot_limit_ms:g} ms"),
    )
    return tuple((name, value) for name, value in settings if value)


def _workload(options: argparse.Namespace, say: Say) -> Workload:
    if options.generate:
        make = WORKLOADS[options.generate]
        seeds = ", ".join(map(str, options.seeds))
        name = f"{options.generate}, {options.rate:g}/s, seeds {seeds}"
        several = [make(Random(seed), options.rate) for seed in options.seeds]
        own_block_size = BLOCK_TOKENS
    else:
        name = options.trace.name
        rows, own_block_size = _read(options, say)
        several = [rows]
    chainer = Chainer(options.trace_block_size or own_block_size, options.block_size)
    runs = tuple(list(chainer.requests(rows[: options.limit], options.speed)) for rows in several)
    if not any(runs):
        raise ConfigurationError("trace", "has no request that can be replayed")
    return Workload(name, runs)


def _read(options: argparse.Namespace, say: Say) -> tuple[list[TraceRow], int]:
    """The rows, and the tokens in a block of theirs."""
    try:
        lines = options.trace.read_text(errors="replace").splitlines()
    except OSError as error:
        raise ConfigurationError(str(options.trace), f"cannot be read: {error.strerror}") from error
    name = detect(lines[0] if lines else "") if options.format == "auto" else options.format
    bad = BadLines()
    rows = read_rows(lines, FORMATS[name], bad)
    for number, reason in bad.first:
        say(f"{options.trace}:{number}: left out: {reason}")
    say(f"{options.trace}: {len(rows)} requests, {bad.total} lines left out")
    said = (row.block_size for row in rows if row.block_size is not None)
    return rows, next(said, FORMATS[name].block_size)


def _plan(options: argparse.Namespace, policy: str) -> ReplayPlan:
    latency = _latency(options.timing)
    return ReplayPlan(
        parse_policy(policy),
        FleetPlan(options.replicas, options.blocks, options.block_size, latency),
        ingresses=options.ingresses,
        is_shared=not options.separate,
        event_delay_s=options.event_delay,
        failures=tuple(map(parse_failure, options.fail)),
        scalings=tuple(map(parse_scaling, options.scale)),
    )


def _latency(timing: str) -> LatencyModel | None:
    if timing == "dynamo":
        return None
    return latency_of(SimConfig()) if timing == "linear" else read_profile(Path(timing))


def _replayed(
    name: str, plan: ReplayPlan, workload: Workload, limits: Limits, say: Say
) -> PolicyRuns:
    found, outcomes = [], []
    for number, requests in enumerate(workload.runs):
        started_s = time.perf_counter()
        progress = Progress(f"{name} {number + 1}/{len(workload.runs)}", len(requests))
        replayed = Simulation(plan, requests, progress).run()
        progress.close()
        found.append(figures(replayed, limits))
        outcomes.append(replayed.outcomes)
        rate = len(requests) / (time.perf_counter() - started_s)
        say(f"{name}: {len(requests)} requests, {rate:,.0f} a second")
    return PolicyRuns(mean_of(found), outcomes[0])


class Progress:
    """A line that is written over, on a terminal only."""

    def __init__(self, name: str, total: int) -> None:
        self._name = name
        self._total = total
        self._next = 0
        self._is_shown = sys.stderr.isatty()

    def __call__(self, ended: int) -> None:
        if self._is_shown and ended >= self._next:
            self._next = ended + max(self._total // 100, 1)
            sys.stderr.write(f"\r{self._name}: {ended:,} of {self._total:,} requests")
            sys.stderr.flush()

    def close(self) -> None:
        if self._is_shown:
            sys.stderr.write("\r\033[K")


def _count(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError("a whole number from 1 on")
    return int(text)


def _positive(text: str) -> float:
    if not 0 < (value := float(text)) < float("inf"):
        raise argparse.ArgumentTypeError("a number above 0")
    return value
