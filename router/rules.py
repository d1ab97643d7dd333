"""Workload rules: which policy, with which parameters, decides on which kind of request.

Pure. Rules are tried in order and the first that matches a request wins; what none matches goes to
the default. All is validated when they are made, so that a misspelt key dies at start.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict, Field, JsonValue, model_validator

from router.core.errors import ConfigurationError
from router.core.types import Tenant
from router.policies.registry import DEFAULT_POLICY, PolicySpec, make_policy


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())


class PolicyConfig(_Section):
    """A policy by name, with those of its parameters that differ from its defaults."""

    policy: str = DEFAULT_POLICY
    parameters: dict[str, JsonValue] = Field(default_factory=dict)

    def spec(self) -> PolicySpec:
        return PolicySpec(self.policy, json.dumps(self.parameters, sort_keys=True))


class RuleMatch(_Section):
    """Conditions on a request; it must meet all that are given.

    `models` and `tenants`: one of them. `min_prompt_tokens` and `max_prompt_tokens`: inclusive.
    `headers`: names, in any case, all of which it carries. `has_session_hint`: whether it has one.
    """

    models: tuple[str, ...] | None = Field(None, min_length=1)
    tenants: tuple[str, ...] | None = Field(None, min_length=1)
    min_prompt_tokens: int | None = Field(None, ge=0)
    max_prompt_tokens: int | None = Field(None, ge=0)
    headers: tuple[str, ...] | None = Field(None, min_length=1)
    has_session_hint: bool | None = None

    @model_validator(mode="after")
    def _satisfiable(self) -> "RuleMatch":
        low, high = self.min_prompt_tokens, self.max_prompt_tokens
        if low is not None and high is not None and low > high:
            raise ValueError("min_prompt_tokens is above max_prompt_tokens")
        return self

    @property
    def is_empty(self) -> bool:
        return self == RuleMatch()


class WorkloadRule(PolicyConfig):
    """One rule; `name` appears in logs and in explanations."""

    name: str = Field(min_length=1)
    match: RuleMatch = RuleMatch()


@dataclass(frozen=True, slots=True)
class RequestFacts:
    """What rules may look at. Header names are in lower case."""

    model: str
    tenant: Tenant
    prompt_tokens: int
    headers: frozenset[str] = frozenset()
    has_session_hint: bool = False


@dataclass(frozen=True, slots=True)
class RuleOutcome:
    """The policy for a request and the rule that said so, None for the default."""

    policy: PolicySpec
    rule: str | None


class WorkloadRules:
    """An ordered list of rules with its default. Immutable.

    Raises `ConfigurationError` naming the key below `key`: for an unknown policy or parameter, a
    name given twice, and a rule that no request can reach.
    """

    def __init__(
        self, rules: Sequence[WorkloadRule], default: PolicyConfig, *, key: str = ""
    ) -> None:
        _check_names(rules, key)
        _check_reachable(rules, key)
        self._default = RuleOutcome(_checked_spec(default, f"{key}default."), None)
        self._rules = [
            (rule.match, RuleOutcome(_checked_spec(rule, f"{key}rules[{position}]."), rule.name))
            for position, rule in enumerate(rules)
        ]

    def outcome(self, request: RequestFacts) -> RuleOutcome:
        """Of the first rule that matches. O(rules)."""
        for match, outcome in self._rules:
            if matches(match, request):
                return outcome
        return self._default


def matches(match: RuleMatch, request: RequestFacts) -> bool:
    """Whether the request meets every condition that is given."""
    return (
        (match.models is None or request.model in match.models)
        and (match.tenants is None or request.tenant in match.tenants)
        and _is_within(request.prompt_tokens, match.min_prompt_tokens, match.max_prompt_tokens)
        and all(header.lower() in request.headers for header in match.headers or ())
        and match.has_session_hint in (None, request.has_session_hint)
    )


def _is_within(tokens: int, least: int | None, most: int | None) -> bool:
    return (least is None or tokens >= least) and (most is None or tokens <= most)


def _checked_spec(config: PolicyConfig, key: str) -> PolicySpec:
    spec = config.spec()
    make_policy(spec, key=key)
    return spec


def _check_names(rules: Sequence[WorkloadRule], key: str) -> None:
    seen: set[str] = set()
    for position, rule in enumerate(rules):
        if rule.name in seen:
            raise ConfigurationError(f"{key}rules[{position}].name", f"{rule.name!r} occurs twice")
        seen.add(rule.name)


def _check_reachable(rules: Sequence[WorkloadRule], key: str) -> None:
    for position, rule in enumerate(rules[1:], start=1):
        if any(
            earlier.match.is_empty or earlier.match == rule.match for earlier in rules[:position]
        ):
            message = "an earlier rule takes every request that this one matches"
            raise ConfigurationError(f"{key}rules[{position}].match", message)
