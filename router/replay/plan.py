"""What is replayed: fleet, policy, callers, and what befalls the fleet on the way. Pure values."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from replicas.sim.latency import LatencyModel
from router.core.errors import ConfigurationError
from router.policies.registry import POLICIES, PolicySpec, Registration


@dataclass(frozen=True, slots=True)
class FleetPlan:
    """Replicas with `blocks` of `block_size` tokens each.

    `latency`: how long their passes take; None: as Dynamo's mocker's.
    """

    replicas: int = 8
    blocks: int = 2048
    block_size: int = 64
    latency: LatencyModel | None = None


@dataclass(frozen=True, slots=True)
class Failure:
    """At `at_s` the replica dies with all that runs and is cached there, and is back, empty, after
    `down_s`. `replica` None: every cache drops what no running request holds, and nobody dies."""

    at_s: float
    replica: int | None
    down_s: float = 10.0


@dataclass(frozen=True, slots=True)
class Scaling:
    """At `at_s` so many replicas come, or leave where `change` is negative, the youngest first.

    One that leaves gets no more requests and finishes those that it has.
    """

    at_s: float
    change: int


@dataclass(frozen=True, slots=True)
class ReplayPlan:
    """One replay of one policy.

    `event_delay_s` after a pass the index hears of it. Of several ingresses, which take the
    requests in turn, each has one call to the index under way at a time, `call_s` there and back,
    and gathers meanwhile; a single one asks without delay. Where the index `is_shared` not, each
    has one of its own that hears of all replicas' events, but of no other's requests, and asks it
    without delay. `speculative_ttl_s` as in the live index. `policies` can be asked for by name.
    """

    policy: PolicySpec = PolicySpec()
    fleet: FleetPlan = FleetPlan()
    ingresses: int = 1
    call_s: float = 0.002
    event_delay_s: float = 0.0
    failures: tuple[Failure, ...] = ()
    scalings: tuple[Scaling, ...] = ()
    seed: int = 0
    speculative_ttl_s: float = field(default=30.0)
    is_shared: bool = True
    policies: Mapping[str, Registration] = field(default_factory=lambda: POLICIES)

    @property
    def max_replicas(self) -> int:
        """The most there can be at one time, those that are on their way out included."""
        return self.fleet.replicas + sum(max(each.change, 0) for each in self.scalings)


_FAILURE = re.compile(r"(?P<who>\d+|clear)@(?P<at>\d+(?:\.\d+)?)(?:\+(?P<down>\d+(?:\.\d+)?))?")
_SCALING = re.compile(r"(?P<change>[+-]\d+)@(?P<at>\d+(?:\.\d+)?)")


def parse_failure(text: str) -> Failure:
    """`3@60`: replica 3 (from 0) dies at 60 s; `3@60+20`: for 20 s; `clear@60`: caches cleared.

    Raises `ConfigurationError`, as `parse_scaling` does.
    """
    found = _FAILURE.fullmatch(text)
    if found is None:
        raise ConfigurationError("fail", f"{text!r} is not like 3@60, 3@60+20 or clear@60")
    at_s, down_s = float(found["at"]), float(found["down"] or 10.0)
    return Failure(at_s, None if found["who"] == "clear" else int(found["who"]), down_s)


def parse_scaling(text: str) -> Scaling:
    """`+2@100`: two more at 100 s; `-1@200`: one less at 200 s."""
    found = _SCALING.fullmatch(text)
    if found is None:
        raise ConfigurationError("scale", f"{text!r} is not like +2@100 or -1@200")
    return Scaling(float(found["at"]), int(found["change"]))


def parse_policy(text: str) -> PolicySpec:
    """`kv_aware`, or with parameters: `kv_aware{"queue_weight": 3}`."""
    name, brace, rest = text.partition("{")
    return PolicySpec(name, brace + rest) if brace else PolicySpec(name)
