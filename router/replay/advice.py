"""What to deploy, what it gains, and whether it is worth it. Pure.

Policies are compared with the best of those that do not look at caches. A gain counts where it is
above what chance moves such figures by.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass

from router.policies.least_loaded import LeastLoaded
from router.policies.power_of_two import PowerOfTwo
from router.policies.registry import PolicySpec
from router.policies.round_robin import RoundRobin
from router.replay.bounds import Bounds
from router.replay.figures import Figures, Latencies

MIN_GAIN = 0.05
"""Of mean TTFT: less is not worth a moving part."""
_BLIND = frozenset({LeastLoaded.name, PowerOfTwo.name, RoundRobin.name})
"""They know nothing of prompts."""
LITTLE_REUSE = 0.05
"""Of prompt tokens, with an infinite cache."""
IN_TROUBLE = 0.01
"""Share of requests that failed, above which no latency says much."""


@dataclass(frozen=True, slots=True)
class Advice:
    """`policy` is the name with parameters as it was given; `lines` say why."""

    policy: str
    is_worth_it: bool
    lines: tuple[str, ...]


def advice(
    results: Mapping[str, Figures], specs: Mapping[str, PolicySpec], bounds: Bounds
) -> Advice:
    """The best by mean TTFT among those within 2 % of the best goodput; a plain one where what a
    cache-aware one gains is too little. `results` has at least one policy."""
    plain = {name: each for name, each in results.items() if specs[name].name in _BLIND}
    best = _best(results)
    if not plain:
        return Advice(best, True, (f"{best} is the best of those that were tried.", *_UNCOMPARED))
    rival = _best(plain)
    if best == rival:
        return Advice(best, False, (*_nothing_gained(best, bounds), *_trouble(results[best])))
    ours, theirs = results[best].all, results[rival].all
    gain = 1 - ours.mean_ttft_ms / theirs.mean_ttft_ms if theirs.mean_ttft_ms else 0.0
    is_worth_it = gain >= MIN_GAIN
    lines = (*_compared(best, ours, rival, theirs), *_verdict(gain, bounds, rival))
    chosen = best if is_worth_it else rival
    lines = (*lines, *_quicker_to_the_end(chosen, results), *_trouble(results[chosen]))
    return Advice(chosen, is_worth_it, lines)


def yaml_lines(spec: PolicySpec) -> tuple[str, ...]:
    """What to put under an application in Serve's config file."""
    parameters = json.loads(spec.parameters)
    given = [f"        {key}: {json.dumps(value)}" for key, value in parameters.items()]
    return (
        "deployments:",
        "  - name: Ingress",
        "    user_config:",
        f"      policy: {spec.name}",
        "      parameters:" if given else "      parameters: {}",
        *given,
    )


_UNCOMPARED = ("Add least_loaded to --policies to learn whether looking at caches is worth it.",)


def _best(results: Mapping[str, Figures]) -> str:
    most = max(each.all.goodput_rps for each in results.values())
    good = [name for name, each in results.items() if each.all.goodput_rps >= 0.98 * most]
    return min(good, key=lambda name: results[name].all.mean_ttft_ms)


def _compared(best: str, ours: Latencies, rival: str, theirs: Latencies) -> tuple[str, ...]:
    return (
        f"{best} against {rival}, the best that does not look at caches:"
        f" mean TTFT {_change(ours.mean_ttft_ms, theirs.mean_ttft_ms)},"
        f" p99 {_change(ours.p99_ttft_ms, theirs.p99_ttft_ms)},"
        f" mean E2E {_change(ours.mean_e2e_ms, theirs.mean_e2e_ms)},"
        f" reuse {ours.reuse:.3f} instead of {theirs.reuse:.3f}.",
    )


def _verdict(gain: float, bounds: Bounds, rival: str) -> tuple[str, ...]:
    if gain >= MIN_GAIN:
        return ("Worth it.",)
    return (f"Not worth it: {rival} is simpler and as good.", *_little(bounds))


def _nothing_gained(best: str, bounds: Bounds) -> tuple[str, ...]:
    return (f"Not worth it: {best} is the best, and looks at no cache.", *_little(bounds))


def _little(bounds: Bounds) -> tuple[str, ...]:
    if bounds.infinite < LITTLE_REUSE:
        return (f"This workload repeats only {bounds.infinite:.1%} of its tokens.",)
    if bounds.pooled < bounds.infinite / 2:
        return (
            "The caches are too small for it: all as one would reuse"
            f" {bounds.pooled:.3f}, an infinite one {bounds.infinite:.3f}.",
        )
    return ()


def _quicker_to_the_end(chosen: str, results: Mapping[str, Figures]) -> tuple[str, ...]:
    """The first token is not all: who is clearly ahead at the last one is named, too."""
    first = min(results, key=lambda name: results[name].all.mean_e2e_ms)
    ours, theirs = results[chosen].all, results[first].all
    if theirs.mean_e2e_ms >= (1 - MIN_GAIN) * ours.mean_e2e_ms:
        return ()
    return (
        f"If the whole answer counts more than its first token: {first} has a mean E2E"
        f" {_change(theirs.mean_e2e_ms, ours.mean_e2e_ms)} from that of {chosen}.",
    )


def _trouble(figures: Figures) -> tuple[str, ...]:
    if figures.all.error_rate <= IN_TROUBLE:
        return ()
    return (f"{figures.all.error_rate:.1%} of its requests failed: read latencies with care.",)


def _change(ours: float, theirs: float) -> str:
    return f"{ours / theirs - 1:+.0%}" if theirs else "unknown"
