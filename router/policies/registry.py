"""Policies by name, and the one way to make one. Pure."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeVar

from pydantic import ValidationError

from router.core.errors import ConfigurationError
from router.core.types import Value
from router.policies.approximate import Approximate, ApproximateParameters
from router.policies.base import Parameters, RoutingPolicy
from router.policies.kv_aware import KvAware
from router.policies.kv_aware_parameters import KvAwareParameters
from router.policies.least_loaded import LeastLoaded, LoadParameters
from router.policies.power_of_two import PowerOfTwo
from router.policies.prefix_hash import PrefixHash, PrefixHashParameters
from router.policies.round_robin import RoundRobin, RoundRobinParameters
from router.policies.session_affinity import SessionAffinity, SessionAffinityParameters

P = TypeVar("P", bound=Parameters)

DEFAULT_POLICY = KvAware.name


class PolicySpec(Value, frozen=True):
    """A policy by name with its parameters as a JSON object: hashable, and cheap to send."""

    name: str = DEFAULT_POLICY
    parameters: str = "{}"


@dataclass(frozen=True, slots=True)
class Registration:
    """A policy's parameter model and what makes the policy from a JSON object of parameters.

    `make` raises pydantic's `ValidationError`.
    """

    parameters: type[Parameters]
    make: Callable[[str], RoutingPolicy]


def register(kind: type[P], policy: Callable[[P], RoutingPolicy]) -> Registration:
    """A policy that is made of that kind of parameters."""
    return Registration(kind, lambda parameters: policy(kind.model_validate_json(parameters)))


POLICIES: Mapping[str, Registration] = MappingProxyType(
    {
        KvAware.name: register(KvAwareParameters, KvAware),
        LeastLoaded.name: register(LoadParameters, LeastLoaded),
        PowerOfTwo.name: register(LoadParameters, PowerOfTwo),
        RoundRobin.name: register(RoundRobinParameters, RoundRobin),
        SessionAffinity.name: register(SessionAffinityParameters, SessionAffinity),
        PrefixHash.name: register(PrefixHashParameters, PrefixHash),
        Approximate.name: register(ApproximateParameters, Approximate),
    }
)


def make_policy(
    spec: PolicySpec, *, key: str = "", policies: Mapping[str, Registration] = POLICIES
) -> RoutingPolicy:
    """Raises `ConfigurationError` naming the wrong key below `key`, the spec's own place."""
    registration = policies.get(spec.name)
    if registration is None:
        known = ", ".join(sorted(policies))
        raise ConfigurationError(f"{key}policy", f"{spec.name!r} is none of {known}")
    try:
        return registration.make(spec.parameters)
    except ValidationError as error:
        first = error.errors()[0]
        path = ".".join(["parameters", *map(str, first["loc"])])
        raise ConfigurationError(f"{key}{path}", first["msg"]) from error
