"""What may change at run time is checked as a whole and dies with its key's name."""

import pytest

from router.core.errors import ConfigurationError
from router.core.types import Tenant
from router.rules import RequestFacts
from serve_app.tuning import parse_tuning


def test_nothing_said_is_the_default_policy() -> None:
    tuned = parse_tuning({})
    facts = RequestFacts("m", Tenant("t"), 10)
    assert tuned.rules.outcome(facts).policy.name == "kv_aware"
    assert tuned.link.deadline_s == 0.02


def test_rules_policy_and_deadline_are_read() -> None:
    tuned = parse_tuning(
        {
            "policy": "round_robin",
            "rules": [
                {"name": "batch", "policy": "least_loaded", "match": {"tenants": ["night"]}},
            ],
            "index_deadline_ms": 50,
        }
    )
    by_tenant = {
        tenant: tuned.rules.outcome(RequestFacts("m", Tenant(tenant), 10))
        for tenant in ("night", "t")
    }
    assert by_tenant["night"].policy.name == "least_loaded"
    assert (by_tenant["t"].policy.name, by_tenant["t"].rule) == ("round_robin", None)
    assert tuned.link.deadline_s == 0.05


@pytest.mark.parametrize(
    ("raw", "key"),
    [
        ({"polcy": "kv_aware"}, "polcy"),
        ({"policy": "kv_awar"}, "policy"),
        ({"parameters": {"overlap_wait": 1}}, "parameters.overlap_wait"),
        ({"rules": [{"name": "a", "policy": "b"}]}, "rules[0].policy"),
        ({"index_deadline_ms": 0}, "index_deadline_ms"),
        (3, "user_config"),
    ],
)
def test_a_wrong_key_is_named(raw: object, key: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse_tuning(raw)
    assert caught.value.key == key
