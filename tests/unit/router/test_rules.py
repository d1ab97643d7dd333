"""Workload rules: order, conditions, and a wrong configuration that dies by its key."""

import pytest
from pydantic import ValidationError

from router.core.errors import ConfigurationError
from router.core.types import Tenant
from router.policies.registry import PolicySpec
from router.rules import PolicyConfig, RequestFacts, RuleMatch, WorkloadRule, WorkloadRules, matches

REQUEST = RequestFacts(
    model="llama",
    tenant=Tenant("acme"),
    prompt_tokens=500,
    headers=frozenset({"x-batch", "x-trace"}),
    has_session_hint=True,
)


def rules(*given: WorkloadRule, default: PolicyConfig | None = None) -> WorkloadRules:
    return WorkloadRules(given, default or PolicyConfig())


def rule(name: str, policy: str = "least_loaded", **match: object) -> WorkloadRule:
    return WorkloadRule(name=name, policy=policy, match=RuleMatch.model_validate(match))


@pytest.mark.parametrize(
    "match",
    [
        {},
        {"models": ["other", "llama"]},
        {"tenants": ["acme"]},
        {"min_prompt_tokens": 500},
        {"max_prompt_tokens": 500},
        {"headers": ["X-Batch"]},
        {"headers": ["x-batch", "x-trace"]},
        {"has_session_hint": True},
        {"models": ["llama"], "tenants": ["acme"], "min_prompt_tokens": 1, "headers": ["x-batch"]},
    ],
)
def test_a_request_that_meets_all_conditions_matches(match: dict[str, object]) -> None:
    assert matches(RuleMatch.model_validate(match), REQUEST)


@pytest.mark.parametrize(
    "match",
    [
        {"models": ["other"]},
        {"tenants": ["other"]},
        {"min_prompt_tokens": 501},
        {"max_prompt_tokens": 499},
        {"headers": ["x-absent"]},
        {"headers": ["x-batch", "x-absent"]},
        {"has_session_hint": False},
        {"models": ["llama"], "tenants": ["other"]},
    ],
)
def test_a_request_that_fails_one_condition_does_not_match(match: dict[str, object]) -> None:
    assert not matches(RuleMatch.model_validate(match), REQUEST)


def test_the_first_matching_rule_wins() -> None:
    ordered = rules(
        rule("others", tenants=["other"]),
        rule("long", "power_of_two", min_prompt_tokens=400),
        rule("all", "round_robin"),
    )
    outcome = ordered.outcome(REQUEST)
    assert (outcome.rule, outcome.policy) == ("long", PolicySpec("power_of_two"))


def test_what_no_rule_matches_goes_to_the_default() -> None:
    default = PolicyConfig(parameters={"overlap_weight": 3.0})
    outcome = rules(rule("others", tenants=["other"]), default=default).outcome(REQUEST)
    assert outcome.rule is None
    assert outcome.policy == PolicySpec("kv_aware", '{"overlap_weight": 3.0}')


def test_equal_parameters_make_equal_specs_in_any_order() -> None:
    """Specs are keys of the selector's memory of policies."""
    first = PolicyConfig(parameters={"overlap_weight": 3.0, "min_overlap_blocks": 2})
    second = PolicyConfig(parameters={"min_overlap_blocks": 2, "overlap_weight": 3.0})
    assert first.spec() == second.spec()


def test_an_unknown_parameter_dies_by_its_key() -> None:
    wrong = WorkloadRule(name="b", match=RuleMatch(models=("x",)), parameters={"overlap_wait": 1})
    with pytest.raises(ConfigurationError) as caught:
        WorkloadRules([rule("a", tenants=["t"]), wrong], PolicyConfig(), key="routing.")
    assert caught.value.key == "routing.rules[1].parameters.overlap_wait"


def test_an_unknown_policy_dies_by_its_key_and_names_the_known() -> None:
    with pytest.raises(ConfigurationError, match="kv_aware, least_loaded") as caught:
        rules(rule("a", "kv_awear"))
    assert caught.value.key == "rules[0].policy"


def test_a_wrong_default_dies_by_its_key() -> None:
    with pytest.raises(ConfigurationError) as caught:
        rules(default=PolicyConfig(parameters={"overlap_weight": "high"}))
    assert caught.value.key == "default.parameters.overlap_weight"


def test_a_name_given_twice_is_refused() -> None:
    with pytest.raises(ConfigurationError) as caught:
        rules(rule("a", tenants=["t"]), rule("a", tenants=["u"]))
    assert caught.value.key == "rules[1].name"


@pytest.mark.parametrize("earlier", [{}, {"tenants": ["t"]}])
def test_a_rule_that_no_request_reaches_is_refused(earlier: dict[str, object]) -> None:
    with pytest.raises(ConfigurationError) as caught:
        rules(rule("a", **earlier), rule("b", tenants=["t"]))
    assert caught.value.key == "rules[1].match"


@pytest.mark.parametrize(
    "match",
    [{"tenant": ["t"]}, {"models": []}, {"min_prompt_tokens": 5, "max_prompt_tokens": 4}],
)
def test_a_wrong_condition_is_refused(match: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        RuleMatch.model_validate(match)
